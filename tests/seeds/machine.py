"""The facts on one machine: GM and local controllers on one broker, their workers scripted, and a real worker.

Time is simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import topics
from halimede.api.crd import definitions
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBus
from halimede.cli.client import ApiRefusedError
from halimede.datasets import count
from halimede.worker.errors import WorkerError
from tests.integration.gm_world import dataset, multi_edge
from tests.integration.gm_world import service as joint_inference
from tests.integration.inference_models import KUBEEDGE, SEDNA, read
from tests.seeds.facts import MANIFESTS, with_columns
from tests.seeds.samples import (
    FACES,
    HOSTNAME,
    JOINT,
    NAME,
    SELECTOR,
    SERVED,
    SEVERAL,
    info,
    model,
    service,
    without_node,
    write_data,
)
from tests.simulated import simulate
from tests.stateful.world import World
from tests.unit.worker.world import HARD
from tests.unit.worker.world import world as worker_world

STATUS = f"default/sedna/status/{JOINT}/{NAME}"
Documents = dict[str, Any]


def status_of(world: World, name: str = NAME, plural: str = JOINT) -> Any:
    return json.loads(world.broker.kept[f"default/sedna/status/{plural}/{name}"])


def seen(world: World, heard: Sequence[Packet], name: str = NAME) -> dict[str, dict[str, int]]:
    """Count what each node was sent of the service, and its workers."""
    sent = [packet.topic for packet in heard]
    return {
        node: {
            "inserts": sum(t.startswith(f"node/{node}/") and t.endswith(f"{name}/insert") for t in sent),
            "deletes": sum(t.startswith(f"node/{node}/") and t.endswith(f"{name}/delete") for t in sent),
            "workers": len(world.nodes[node].workers.alive),
        }
        for node in world.nodes
    }


def listen(world: World) -> list[Packet]:
    """Return a list of what is published from now on. What workers say is the test's matter."""
    heard: list[Packet] = []
    world.broker.heard = heard.append
    for node in world.nodes.values():
        node.workers.heartbeat = lambda: 1e6
    return heard


def of_edge0(heard: Sequence[Packet], name: str) -> tuple[Packet, list[Packet]]:
    """Return the one insert of a service that edge0 was sent, and its reports of the service."""
    sent = [packet for packet in heard if packet.topic.startswith("node/edge0/")]
    (insert,) = (packet for packet in sent if packet.topic.endswith(f"{name}/insert"))
    return insert, [packet for packet in sent if packet.topic.endswith(f"{name}/status")]


async def refused(world: World, body: dict[str, Any]) -> dict[str, str]:
    """Apply what GM refuses; return the field that it names."""
    with pytest.raises(ApiRefusedError) as caught:
        await world.client.apply(body)
    return {"field": caught.value.field}


def report(world: World, body: dict[str, Any]) -> None:
    """Publish a worker's report as a worker of edge0 does."""
    topic = f"node/edge0/default/sedna/workers/{body['name']}/info"
    world.broker.route(Packet(topic, json.dumps(body).encode()))


async def control(world: World) -> dict[str, Any]:
    """Take a service through its life, and keep what is published of it."""
    found: dict[str, Any] = {}
    heard = listen(world)
    cloud, edge = world.nodes["cloud0"], world.nodes["edge0"]
    cloud.cut()
    await asyncio.sleep(30)
    found["refused"] = await refused(world, without_node(service()))
    await world.client.apply(service())
    await asyncio.sleep(5)
    found["unmet"] = status_of(world)
    for name in ("small-model", "big-model"):
        await world.client.apply(model(name))
    await asyncio.sleep(10)
    found["edge-only"] = status_of(world)
    cloud.heal()
    await asyncio.sleep(30)
    for node, role in ((edge, "edge"), (cloud, "cloud")):
        (process,) = node.workers.alive
        assert process.start
        found[f"{role}-worker"] = {"env": dict(process.start.spec.env), "node": node.node}
    report(world, info(f"{NAME}-edge-edge0"))
    await asyncio.sleep(5)
    insert, reports = of_edge0(heard, NAME)
    found["first-report"], found["report"] = json.loads(reports[0].payload), json.loads(reports[-1].payload)
    found["insert"], found["topics"] = json.loads(insert.payload), {"insert": insert.topic, "status": reports[0].topic}
    found["status"] = status_of(world)
    found["metrics"] = {each["key"]: each["value"] for each in found["status"]["status"]["metrics"]}
    found["flow"] = {"created": seen(world, heard)}
    heard.clear()
    await end(world, found)
    found["flow"]["deleted"] = seen(world, heard)
    return found


async def end(world: World, found: dict[str, Any]) -> None:
    """Apply a service that has no node, let the edge worker of the other one crash, and delete both."""
    workers = world.nodes["edge0"].workers
    await world.client.apply(service("elsewhere", cloud="ghost"))
    await asyncio.sleep(5)
    found["no-node"] = status_of(world, "elsewhere")
    await world.client.delete("jointinferenceservices", "elsewhere")
    await asyncio.sleep(30)
    workers.exits = 1
    workers.alive[0].end(1)
    await asyncio.sleep(60)
    found["failed"] = status_of(world)
    workers.exits = None
    await world.client.delete("jointinferenceservices", NAME)
    await asyncio.sleep(60)
    assert STATUS not in world.broker.kept
    world.check()


async def several(world: World) -> dict[str, Any]:
    """Take a multi-edge service through its life, and keep what is published of it."""
    found: dict[str, Any] = {}
    heard = listen(world)
    await world.client.apply(multi_edge("crossing", cloud="cloud0", north="edge0", south="edge1"))
    await asyncio.sleep(5)
    found["several-unmet"] = status_of(world, "crossing", SEVERAL)
    await world.client.apply(model("small"))
    await world.client.apply(multi_edge("elsewhere", north="ghost"))
    await asyncio.sleep(30)
    found["several-no-node"] = status_of(world, "elsewhere", SEVERAL)
    north = world.nodes["edge0"].workers.alive[0].record.worker.name
    report(world, info(north, "crossing", SEVERAL))
    await asyncio.sleep(5)
    insert, reports = of_edge0(heard, "crossing")
    found["several-report"], found["several-insert"] = json.loads(reports[-1].payload), json.loads(insert.payload)
    found["several-topics"] = {"insert": insert.topic, "status": reports[-1].topic}
    found["several-status"] = status_of(world, "crossing", SEVERAL)
    found["several-flow"] = {"created": seen(world, heard, "crossing")}
    heard.clear()
    await world.client.delete(SEVERAL, "crossing")
    await asyncio.sleep(60)
    found["several-flow"]["deleted"] = seen(world, heard, "crossing")
    world.check()
    return found


async def served(world: World) -> dict[str, Any]:
    """Serve the samples of InferenceModels on a node, as ONNX; keep what is published of them."""
    found: dict[str, Any] = {}
    heard, workers = listen(world), world.nodes["edge0"].workers
    here = {"frameworkType": "onnx", "nodeName": "edge0", "nodeSelector": {HOSTNAME: "edge0"}}
    for name, change in {"negative-port": {"servingPort": -1}, "negative-replicas": {"replicas": -1}}.items():
        found[name] = await refused(world, read(SEDNA, **here, **change))
    for prefix, sample in (("served", SEDNA), ("kubeedge", KUBEEDGE)):
        heard.clear()
        await world.client.apply(read(sample, **here))
        await asyncio.sleep(30)
        (process,) = workers.alive
        assert process.start
        assert process.start.desired_model
        argv, desired, worker = process.start.spec.argv, process.start.desired_model, process.record.worker.name
        port = int(argv[argv.index("--http") + 1].rpartition(":")[2])
        found[f"{prefix}-server"] = {"name": desired.name, "version": desired.version, "port": port}
        using = {"version": desired.version, "digest": desired.digest}
        serving = {"role": "serve", "model": using, "url": f"http://edge0:{port}"}
        report(world, info(worker, "facialexpression", SERVED, **serving))
        await asyncio.sleep(5)
        (insert,) = (each for each in heard if each.topic.endswith("facialexpression/insert"))
        found[f"{prefix}-insert"] = json.loads(insert.payload)
        found[f"{prefix}-status"] = status_of(world, "facialexpression", SERVED)
        await world.client.delete(SERVED, "facialexpression")
        await asyncio.sleep(30)
        assert not workers.alive
    world.check()
    return found


async def selected(world: World) -> dict[str, Any]:
    """Select a Model by its metadata, and keep what becomes of it."""
    found: dict[str, Any] = {}
    heard: list[Packet] = []
    world.broker.heard = heard.append
    doors = joint_inference("doors")
    doors["spec"]["edgeWorker"]["model"] = {"selector": SELECTOR}
    shared = dataset("shared", nodeName="edge0", syncTo={HOSTNAME: "edge1"})
    for body in (model("small"), model("big"), model("faces", **FACES), doors, shared):
        await world.client.apply(body)
    await asyncio.sleep(120)
    found["synced"] = {
        node: sum(each.topic == f"node/{node}/default/sedna/downstream/datasets/shared/insert" for each in heard)
        for node in world.nodes
    }
    found["synced-status"] = status_of(world, "shared", "datasets")
    (insert,) = (each for each in heard if each.topic.endswith("models/faces/insert"))
    found["model-insert"] = {"topic": insert.topic, **json.loads(insert.payload)}
    found["model-status"] = status_of(world, "faces", "models")
    found["selection"] = status_of(world, "doors")
    world.check()
    return found


def counted(folder: Path) -> dict[str, Any]:
    return {name: msgspec.to_builtins(count(path, name).facts) for name, path in write_data(folder)}


async def reported(folder: Path) -> dict[str, Any]:
    """Run a real worker, and another one that cannot start, and keep their reports."""
    bodies: list[dict[str, Any]] = []

    async def hear(delivery: Delivery[Any]) -> None:
        bodies.append({**json.loads(bytes(delivery.packet.payload)), "topic": delivery.packet.topic})

    async with worker_world(folder) as w, MemoryBus("ear", w.broker) as ear:
        await ear.subscribe(topics.WORKER_INFO.filter(), hear)
        async with w.worker("edge", "e0", node="edge0", service=NAME):
            await w.answer(await w.send(HARD))
            await asyncio.sleep(5)
        running = [body for body in bodies if body["status"] == "running"]
        found = {"info": running[-1], "last-info": bodies[-1]}
        with contextlib.suppress(WorkerError):
            async with w.worker("edge", "e1", hem_name="NoSuchAlgorithm"):
                pass
        return {**found, "failed-info": bodies[-1]}


def documents(folder: Path) -> Documents:
    """Return what the product publishes on one machine, by the names that the table uses."""
    found: Documents = {}
    for more in lives(folder):
        found |= more
    return found


def lives(folder: Path) -> Iterator[Documents]:
    """Yield the documents of one part of the product after another, the quickest first."""
    made = definitions()
    yield with_columns({name: made[f"{file}.yaml"] for name, file in MANIFESTS.items()})
    for life in (control, several, served, selected):
        world = World(1)
        try:
            yield world.run(life(world))
        finally:
            world.close()
    yield {"counted": counted(folder / "data")}
    yield simulate(reported(folder / "worker"))
