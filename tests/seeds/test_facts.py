"""Each fact of the documents that define the system holds for the running product: GM and local controllers on one
broker, their workers scripted; a real worker; what GM makes for Kubernetes; and the manifests that operators apply.
Time is simulated.
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

import msgspec
import pytest
import ruamel.yaml

from halimede import api, topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBus
from halimede.cli.client import ApiRefusedError
from halimede.datasets import count
from halimede.worker.errors import WorkerError
from services.gm.workloads import serving_objects
from services.gm.workloads.pod_settings import PodSettings
from tests.integration.gm_world import dataset, multi_edge
from tests.integration.gm_world import service as joint_inference
from tests.integration.inference_models import KUBEEDGE, SEDNA, read
from tests.simulated import simulate
from tests.stateful.world import World
from tests.unit.worker.world import HARD
from tests.unit.worker.world import world as worker_world

ROOT = Path(__file__).parents[2]
FACTS = tomllib.loads((Path(__file__).parent / "facts.toml").read_text())["fact"]
NAME = "helmet-detection-demo"
STATUS = f"default/sedna/status/jointinferenceservices/{NAME}"
SEVERAL, SERVED = "multiedgeinferenceservices", "inferencemodels"
HOSTNAME = "kubernetes.io/hostname"
#: two samples in the formats that a dataset may have
DATA = {
    "csv": "picture,label\n1.png,cat\n2.png,dog\n",
    "txt": "1.png 0\n2.png 1\n",
    "xml": "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>"
    "</bndbox></object></annotation>",
}
#: the manifests of resources, by the names that the table uses
MANIFESTS = {
    "manifest": "neptune.io_jointinferenceservices",
    "served-manifest": "sedna.io_inferencemodels",
    "kubeedge-manifest": "ai.kubeedge.io_inferencemodels",
    "model-manifest": "sedna.io_models",
    "dataset-manifest": "sedna.io_datasets",
    "several-manifest": "sedna.io_multiedgeinferenceservices",
}
CHECKS = {"type", "value", "schema", "same_as"}
#: types of JSON, and a time as text
TYPES = {
    "string": str, "integer": int, "number": (int, float), "array": list, "object": dict, "null": type(None),
    "time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
}  # fmt: skip


def model(name: str, **more: Any) -> dict[str, Any]:
    spec = {"url": f"/models/{name.removesuffix('-model')}.onnx", "format": "onnx", **more}
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


def info(worker: str, name: str = NAME, kind: str = "jointinferenceservice") -> bytes:
    """A worker's report in the words of seed 001, and nothing else."""
    counts = {
        "inferenceNumber": 1000,
        "hardExampleNumber": 100,
        "uploadCloudRatio": 0.1,
        "startTime": "2020-11-03T08:39:22.517Z",
        "updateTime": "2020-11-03T08:50:22.517Z",
    }
    owner = {"ownerName": name, "ownerKind": kind}
    body = {"name": worker, "namespace": "default", **owner, "kind": "inference", "status": "running"}
    return json.dumps({**body, "taskInfo": counts}).encode()


def status_of(world: World, name: str = NAME, plural: str = "jointinferenceservices") -> Any:
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


async def several(world: World) -> dict[str, Any]:
    """Take a multi-edge service through its life, and keep what is published of it."""
    found: dict[str, Any] = {}
    heard: list[Packet] = []
    world.broker.heard = heard.append
    for node in world.nodes.values():
        node.workers.heartbeat = lambda: 1e6
    await world.client.apply(multi_edge("crossing", cloud="cloud0", north="edge0", south="edge1"))
    await asyncio.sleep(5)
    found["several-unmet"] = status_of(world, "crossing", SEVERAL)
    await world.client.apply(model("small"))
    await world.client.apply(multi_edge("elsewhere", north="ghost"))
    await asyncio.sleep(30)
    found["several-no-node"] = status_of(world, "elsewhere", SEVERAL)
    north = world.nodes["edge0"].workers.alive[0].record.worker.name
    packet = Packet(f"node/edge0/default/sedna/workers/{north}/info", info(north, "crossing", SEVERAL[:-1]))
    world.broker.route(packet)
    await asyncio.sleep(5)
    edge_heard = [each for each in heard if each.topic.startswith("node/edge0/") and "crossing/" in each.topic]
    reports = [each for each in edge_heard if each.topic.endswith("crossing/status")]
    (insert,) = (each for each in edge_heard if each.topic.endswith("crossing/insert"))
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
    heard: list[Packet] = []
    world.broker.heard = heard.append
    workers = world.nodes["edge0"].workers
    workers.heartbeat = lambda: 1e6
    here = {"frameworkType": "onnx", "nodeName": "edge0", "nodeSelector": {HOSTNAME: "edge0"}}
    refused = {"negative-port": {"servingPort": -1}, "negative-replicas": {"replicas": -1}}
    for name, change in refused.items():
        with pytest.raises(ApiRefusedError) as caught:
            await world.client.apply(read(SEDNA, **here, **change))
        found[name] = {"field": caught.value.field}
    for prefix, sample in (("served", SEDNA), ("kubeedge", KUBEEDGE)):
        heard.clear()
        await world.client.apply(read(sample, **here))
        await asyncio.sleep(30)
        (process,) = workers.alive
        assert process.start
        assert process.start.desired_model
        argv, desired, worker = process.start.spec.argv, process.start.desired_model, process.record.worker.name
        found[f"{prefix}-server"] = {
            "name": desired.name,
            "version": desired.version,
            "port": int(argv[argv.index("--http") + 1].rpartition(":")[2]),
        }
        using = {"version": desired.version, "digest": desired.digest}
        body = json.loads(info(worker, "facialexpression", SERVED[:-1])) | {
            "role": "serve", "model": using, "url": "http://edge0:8501"
        }  # fmt: skip
        world.broker.route(Packet(f"node/edge0/default/sedna/workers/{worker}/info", json.dumps(body).encode()))
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
    versions = [{"version": each, "url": f"/models/faces-{each}.onnx"} for each in ("3", "4")]
    accurate = [{"key": "accuracy", "value": "0.8"}, {"key": "recall", "value": "0.7"}]
    traits = {"metadata": {"finds": "faces"}, "labels": ["dog", "cat"], "metrics": accurate}
    await world.client.apply(model("small"))
    await world.client.apply(model("big"))
    await world.client.apply(model("faces", versions=versions, targetVersion="3", **traits))
    body = joint_inference("doors")
    body["spec"]["edgeWorker"]["model"] = {"selector": {"metadata": {"finds": "faces"}, "labels": ["cat"]}}
    await world.client.apply(body)
    await world.client.apply(dataset("shared", nodeName="edge0", syncTo={HOSTNAME: "edge1"}))
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
    """Count two samples in each format of ``DATA``."""
    found = {}
    for name, text in DATA.items():
        for file in ("1.xml", "2.xml") if name == "xml" else (f"all.{name}",):
            path = folder / name / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        found[name] = msgspec.to_builtins(count(folder / name, name).facts)
    return found


def objects(**changes: Any) -> dict[str, Any]:
    """Return what GM makes of the sample on Kubernetes, by kind, and the parts of its pods that have odd names."""
    built = serving_objects.build(api.parse(read(SEDNA, frameworkType="onnx", **changes)), {}, PodSettings(broker=""))
    made = {body["kind"]: body for body in built.objects}
    pod = made["Deployment"]["spec"]["template"]["spec"]
    return {**made, "downloads": len(pod.get("initContainers", ())), "selector": pod.get("nodeSelector", {})}


def customers() -> dict[str, Any]:
    """Return the two models and the pod in front of them that are shipped for customers' requests."""
    yaml, found = ruamel.yaml.YAML(typ="safe"), {}
    for file in ("models.yaml", "router.yaml"):
        for body in yaml.load_all((ROOT / "deploy/router" / file).read_text()):
            found[body["spec"].get("deployToLayer", body["kind"])] = body
    return {**found, "selector": found["Deployment"]["spec"]["template"]["spec"]["nodeSelector"]}


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
    yaml = ruamel.yaml.YAML(typ="safe")
    found: dict[str, Any] = {name: yaml.load(ROOT / f"deploy/crds/{file}.yaml") for name, file in MANIFESTS.items()}
    shown = found["manifest"]["spec"]["versions"][0]["additionalPrinterColumns"]
    found["columns"] = {each["jsonPath"]: each["type"] for each in shown}
    for life in (control, several, served, selected):
        world = World(1)
        try:
            found |= world.run(life(world))
        finally:
            world.close()
    found["cloud-objects"] = objects(deployToLayer="cloud", replicas=3, nodeName="", serviceType="NodePort")
    found["edge-objects"] = objects(nodeName="", replicas=3)
    found["image-objects"] = objects(image="example.io/faces:1", targetVersion="no such one")
    found["customers"] = customers()
    found["counted"] = counted(tmp_path_factory.mktemp("data"))
    found |= simulate(reported(tmp_path_factory.mktemp("worker")))
    found["topics"]["info"] = found["info"]["topic"]
    return found


def parts(path: str) -> list[str | int]:
    """Split a path; a part in quotes is one key."""
    found = re.findall(r"'([^']+)'|([^.\[\]]+)|\[(-?\d*)\]", path)
    return [quoted or name or (int(index) if index else "[]") for quoted, name, index in found]


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
    keys = {"seed", "section", "document", "path", "required", "format", "minimum", "note"} | CHECKS
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
        assert schema.get("minimum") == fact.get("minimum", schema.get("minimum"))
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
