"""Each fact of the documents that define the system holds for the running product: GM and local controllers on one
broker, their workers scripted; a real worker; and the manifest that operators apply. Time is simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ruamel.yaml

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBus
from halimede.cli.client import ApiRefusedError
from halimede.worker.errors import WorkerError
from tests.simulated import simulate
from tests.stateful.world import World
from tests.unit.worker.world import HARD
from tests.unit.worker.world import world as worker_world

ROOT = Path(__file__).parents[2]
FACTS = tomllib.loads((Path(__file__).parent / "facts.toml").read_text())["fact"]
NAME = "helmet-detection-demo"
STATUS = f"default/sedna/status/jointinferenceservices/{NAME}"
CHECKS = {"type", "value", "schema", "same_as"}
#: types of JSON, and a time as text
TYPES = {
    "string": str, "integer": int, "number": (int, float), "array": list, "object": dict, "null": type(None),
    "time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
}  # fmt: skip


def model(name: str) -> dict[str, Any]:
    spec = {"url": f"/models/{name.removesuffix('-model')}.onnx", "format": "onnx"}
    return {"apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": spec}


def service(name: str = NAME, cloud: str = "cloud0") -> dict[str, Any]:
    """The sample of seed 001, on the nodes of the simulation."""

    def worker(name: str, model: str, node: str, script: str) -> dict[str, Any]:
        spec = {
            "scriptDir": "/code",
            "scriptBootFile": script,
            "frameworkType": "tensorflow",
            "frameworkVersion": "1.18",
            "parameters": [{"key": "nms_threshold", "value": "0.6"}],
        }
        return {"name": name, "model": {"name": model}, "nodeName": node, "workerSpec": spec}

    edge = worker("edgeworker", "small-model", "edge0", "edge_inference.py")
    return {
        "apiVersion": "neptune.io/v1alpha1",
        "kind": "JointInferenceService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "edgeWorker": edge | {"hardExampleAlgorithm": {"name": "IBT"}},
            "cloudWorker": worker("work", "big-model", cloud, "cloud_inference.py"),
        },
    }


def info(worker: str) -> bytes:
    """A worker's report in the words of seed 001, and nothing else."""
    counts = {
        "inferenceNumber": 1000,
        "hardExampleNumber": 100,
        "uploadCloudRatio": 0.1,
        "startTime": "2020-11-03T08:39:22.517Z",
        "updateTime": "2020-11-03T08:50:22.517Z",
    }
    owner = {"ownerName": NAME, "ownerKind": "jointinferenceservice"}
    body = {"name": worker, "namespace": "default", **owner, "kind": "inference", "status": "running"}
    return json.dumps({**body, "taskInfo": counts}).encode()


def status_of(world: World, name: str = NAME) -> Any:
    return json.loads(world.broker.kept[STATUS.replace(NAME, name)])


def seen(world: World, heard: Sequence[Packet]) -> dict[str, dict[str, int]]:
    """Count what each node was sent of the service, and its workers."""
    sent = [packet.topic for packet in heard]
    return {
        node: {
            "inserts": sum(t.startswith(f"node/{node}/") and t.endswith(f"{NAME}/insert") for t in sent),
            "deletes": sum(t.startswith(f"node/{node}/") and t.endswith(f"{NAME}/delete") for t in sent),
            "workers": len(world.nodes[node].workers.alive),
        }
        for node in world.nodes
    }


async def control(world: World) -> dict[str, Any]:
    """Take a service through its life, and keep what is published of it."""
    found: dict[str, Any] = {}
    heard: list[Packet] = []
    world.broker.heard = heard.append
    cloud, edge = world.nodes["cloud0"], world.nodes["edge0"]
    edge.workers.heartbeat = cloud.workers.heartbeat = lambda: 1e6  # what a worker says is this test's matter
    cloud.cut()
    await asyncio.sleep(30)
    broken = service()
    del broken["spec"]["edgeWorker"]["nodeName"]
    with pytest.raises(ApiRefusedError) as refused:
        await world.client.apply(broken)
    found["refused"] = {"field": refused.value.field}
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
    edge_worker = f"{NAME}-edge-edge0"
    world.broker.route(Packet(f"node/edge0/default/sedna/workers/{edge_worker}/info", info(edge_worker)))
    await asyncio.sleep(5)
    edge_heard = [packet for packet in heard if packet.topic.startswith("node/edge0/")]
    reports = [packet for packet in edge_heard if packet.topic.endswith(f"{NAME}/status")]
    (insert,) = (packet for packet in edge_heard if packet.topic.endswith(f"{NAME}/insert"))
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


async def reported(folder: Path) -> dict[str, Any]:
    """Run a real worker, and another one that cannot start, and keep their reports."""
    bodies: list[dict[str, Any]] = []

    async def hear(delivery: Delivery[Any]) -> None:
        bodies.append({**json.loads(bytes(delivery.packet.payload)), "topic": delivery.packet.topic})

    async with worker_world(folder) as w, MemoryBus("ear", w.broker) as ear:
        await ear.subscribe(topics.WORKER_INFO.filter(), hear)
        async with w.worker("edge", "e0"):
            await w.answer(await w.send(HARD))
            await asyncio.sleep(5)
        running = [body for body in bodies if body["status"] == "running"]
        found = {"info": running[-1], "last-info": bodies[-1]}
        with contextlib.suppress(WorkerError):
            async with w.worker("edge", "e1", hem_name="NoSuchAlgorithm"):
                pass
        return {**found, "failed-info": bodies[-1]}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the running product has published, by the names that the table uses."""
    manifest = ruamel.yaml.YAML(typ="safe").load(ROOT / "deploy/crds/neptune.io_jointinferenceservices.yaml")
    columns = {each["jsonPath"]: each["type"] for each in manifest["spec"]["versions"][0]["additionalPrinterColumns"]}
    world = World(1)
    try:
        found = world.run(control(world))
    finally:
        world.close()
    found |= simulate(reported(tmp_path_factory.mktemp("worker")))
    found["topics"]["info"] = found["info"]["topic"]
    return {**found, "manifest": manifest, "columns": columns}


def parts(path: str) -> list[str | int]:
    """Split a path; a part in quotes is one key."""
    if path.startswith("'"):
        return [path.strip("'")]
    found = re.findall(r"([^.\[\]]+)|\[(-?\d*)\]", path)
    return [name or (int(index) if index else "[]") for name, index in found]


def at(document: Any, path: str) -> Any:
    for part in parts(path):
        document = document[part]
    return document


def schema_at(manifest: Any, path: str) -> tuple[Any, bool]:
    """Return the schema of a field of the resource, and whether it is required."""
    schema, required = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"], False
    for part in parts(path):
        required = part in schema.get("required", ())
        schema = schema["items"] if part == "[]" else schema["properties"][part]
    return schema, required


def test_the_table_names_what_it_is_about_and_nothing_twice() -> None:
    keys = {"seed", "section", "document", "path", "required", "format", "note"} | CHECKS
    assert all(len(CHECKS & fact.keys()) == 1 and fact.keys() <= keys for fact in FACTS)
    rows = [tuple(sorted((key, str(value)) for key, value in fact.items())) for fact in FACTS]
    assert len(rows) == len(set(rows)) > 100


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact['document']}:{fact['path']}")
def test_the_product_has_the_fact(fact: dict[str, Any], documents: dict[str, Any]) -> None:
    document, path = documents[fact["document"]], fact["path"]
    if "schema" in fact:
        schema, required = schema_at(document, path)
        assert schema["type"] == fact["schema"]
        assert "format" not in fact or schema["format"] == fact["format"]
        assert required is fact.get("required", required)
        return
    found = at(document, path)
    if "same_as" in fact:
        assert found == at(documents[fact["same_as"]], path)
    elif "value" in fact:
        assert found == fact["value"]
        assert type(found) is type(fact["value"])
    elif fact["type"] == "time":
        assert TYPES["time"].fullmatch(found)  # type: ignore[attr-defined]
    else:
        assert isinstance(found, TYPES[fact["type"]])  # type: ignore[arg-type]
