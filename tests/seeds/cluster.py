"""The facts on Kubernetes: GM on an API server with what ``deploy/`` ships, real local controllers, kubelets played.

The settings of pods are those of the overlay for scripts. Tests supply nodes, Models, Secrets and the folder `/code`. A
pod's report has its role and the uid of its service in addition to the words of the documents: the local controller did
not choose the pod's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.api.base import NEPTUNE
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBus
from halimede.frames import new_frame, pack
from halimede.worker.bootstrap import serve
from halimede.worker.errors import WorkerError
from halimede.worker.settings import read as read_environment
from services.gm.workloads.serving_objects import VERSION
from services.lc.app import Config, LocalController
from services.lc.models.preparer import plain
from tests.integration.gm_world import dataset, multi_edge
from tests.integration.gm_world import service as joint_inference
from tests.integration.inference_models import KUBEEDGE, SEDNA, inference_model, read
from tests.integration.lc_world import fetch_at_once
from tests.kubernetes.apiserver import Api, on_double, on_server
from tests.kubernetes.client import Body, RefusedError
from tests.kubernetes.placed import named_node
from tests.kubernetes.podstates import failed, pending, running
from tests.kubernetes.volumes import Giver
from tests.kubernetes.world import DEPLOY, PATIENCE, World, path_of, shipped, world
from tests.kubernetes.world import documents as manifests
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
from tests.simulated import eventually
from tests.stateful.parts import Broker

Documents = dict[str, Any]
Holds = Callable[[Body], Any]
#: the sample's own node
ELSEWHERE = "precision-5820"


def because(reason: str) -> Holds:
    return lambda status: status["conditions"][-1]["reason"] == reason


class Cluster:
    """A cluster of two edge nodes and one in the cloud, each with its local controller, and what they publish."""

    def __init__(self, w: World, other: str, folder: Path) -> None:
        self.w = w
        self.nodes = {"edge0": w.edge, "edge1": other, "cloud0": w.cloud}
        self.host = folder / "host"
        self.broker = Broker(0)
        self.heard: list[Packet] = []
        self.folder = folder
        #: names that only this run has, and those of the table
        self.names = {w.namespace: "default", **{real: name for name, real in self.nodes.items()}}
        w.broker = self.broker
        self.broker.heard = self.heard.append

    def controller(self, node: str) -> LocalController:
        """Return the controller of a node as in its pod; only downloads are simulated."""
        config = Config(node, self.folder / node, "memory", pods=True, host_root=self.host)
        return LocalController(config, MemoryBus(f"lc.{node}", self.broker), install=plain(fetch_at_once))

    def topics(self, node: str, end: str) -> list[Packet]:
        """Return the messages of a node whose topics end so."""
        start = f"node/{self.nodes[node]}/"
        return [p for p in self.heard if p.topic.startswith(start) and p.topic.endswith(end) and p.payload]

    async def pods(self, owner: str) -> list[Body]:
        """Return the pods of a service that are not being deleted."""
        found = (await self.w.api.client.list("Pod", self.w.namespace))["items"]
        staying = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
        return [pod for pod in staying if pod["metadata"]["name"].startswith(f"{owner}-")]

    async def seen(self, name: str) -> dict[str, dict[str, int]]:
        """Count what each node was sent of the service, which may be sent again, and its pods."""
        pods = [pod["spec"].get("nodeName") for pod in await self.pods(name)]
        return {
            node: {
                "inserts": len({packet.payload for packet in self.topics(node, f"{name}/insert")}),
                "deletes": len({packet.payload for packet in self.topics(node, f"{name}/delete")}),
                "workers": pods.count(real),
            }
            for node, real in self.nodes.items()
        }

    async def refused(self, body: Body) -> dict[str, str]:
        """Apply what the API server refuses; return the field that it names."""
        with pytest.raises(RefusedError) as caught:
            await self.w.apply(body)
        # a real server adds that it has not checked the rest
        (field,) = (each for each in caught.value.causes if each != "<nil>")
        return {"field": field}

    async def resource(self, name: str, plural: str, version: str, holds: Holds) -> Body:
        """Wait until a resource is so, and return it."""
        find = partial(self.w.find, name, plural, version)
        return await becomes(name, find, lambda found: holds(found.get("status", {})))

    async def heard_last(self, node: str, end: str, holds: Holds) -> Body:
        """Wait until the last message of such a topic is so, and return it."""

        async def last() -> Body:
            packets = self.topics(node, end)
            return dict(json.loads(packets[-1].payload)) if packets else {}

        return await becomes(f"the last {end} of {node}", last, holds)

    async def gone(self, name: str, plural: str, version: str) -> None:
        """Wait until a deleted resource and all that was made of it are gone."""

        async def there() -> bool:
            return await self.w.find(name, plural, version) is None and not [
                made["metadata"]["name"]
                for kind in ("Deployment", "Service", "Pod")
                for made in (await self.w.api.client.list(kind, self.w.namespace))["items"]
                if made["metadata"]["name"] == name or made["metadata"]["name"].startswith(f"{name}-")
            ]

        await eventually(there, PATIENCE, every_s=0.1)

    def exchanged(self, name: str) -> tuple[Body, dict[str, str]]:
        """Return the last insert of a service that the first edge node was sent, and its topics."""
        insert, report = self.topics("edge0", f"{name}/insert")[-1], self.topics("edge0", f"{name}/status")[0]
        return json.loads(insert.payload), {"insert": insert.topic, "status": report.topic}

    def report(self, body: dict[str, Any]) -> None:
        """Publish a worker's report as a pod of the first edge node does."""
        namespace = self.w.namespace
        topic = f"node/{self.nodes['edge0']}/{namespace}/sedna/workers/{body['name']}/info"
        self.broker.route(Packet(topic, json.dumps(body | {"namespace": namespace}).encode()))

    async def worker(self, name: str) -> dict[str, Any]:
        """Return what the pod of a Deployment is given."""
        pod = (await self.w.made("Deployment", name))["spec"]["template"]["spec"]
        container = pod["containers"][0]
        env = {each["name"]: each.get("value") for each in container["env"]}
        return {"env": env, "node": named_node(pod), "image": container["image"], "command": container["command"]}


async def becomes(what: str, read: Callable[[], Awaitable[Body | None]], holds: Holds) -> Body:
    """Wait until what is read is so, and return it."""
    found: Body = {}

    async def is_so() -> bool:
        nonlocal found
        found = await read() or {}
        with contextlib.suppress(LookupError, TypeError):
            return bool(holds(found))
        return False

    await eventually(is_so, PATIENCE, 0.1, lambda: f"{what} is {found}")
    return found


@asynccontextmanager
async def cluster(api: Api, folder: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        w = await stack.enter_async_context(world(api, **shipped("overlays/scripts")))
        other = api.unique("edge")
        await api.node(other, {HOSTNAME: other})
        await api.node(api.unique(ELSEWHERE), {HOSTNAME: ELSEWHERE})
        await w.worker_secrets()  # as an operator creates them in each namespace
        made = Cluster(w, other, folder)
        await stack.enter_async_context(w.gm())
        stopping = asyncio.Event()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(stopping.set)
        for node in made.nodes.values():
            tasks.create_task(made.controller(node).run(stopping))
        yield made


async def control(c: Cluster) -> Documents:
    """Take the service of seed 001 through its life, and keep what is published of it."""
    w, found = c.w, Documents()
    edge, cloud = c.nodes["edge0"], c.nodes["cloud0"]
    body = service(edge=edge, cloud=cloud)
    found["refused"] = await c.refused(without_node(body))
    w.player.behave(pending, prefix=f"{NAME}-deployment-cloud")
    await w.apply(body)

    becomes = partial(c.resource, NAME, JOINT, NEPTUNE)
    found["unmet"] = await becomes(because("ModelNotFound"))
    await w.apply(model("small-model"), model("big-model"))
    found["edge-only"] = await becomes(lambda s: s["active"] == 1)
    w.player.behave(running, prefix=f"{NAME}-deployment-cloud")
    up = await becomes(lambda s: s["phase"] == "Running")
    for role in ("edge", "cloud"):
        found[f"{role}-worker"] = await c.worker(f"{NAME}-deployment-{role}")
    (pod,) = await c.pods(f"{NAME}-deployment-edge")
    c.names[pod["metadata"]["name"]] = "e0"
    await c.heard_last("edge0", f"{NAME}/status", lambda report: report["output"]["models"])
    found["first-report"] = json.loads(c.topics("edge0", f"{NAME}/status")[-1].payload)
    c.report(info(pod["metadata"]["name"], role="edge", ownerUid=up["metadata"]["uid"]))
    found["report"] = await c.heard_last("edge0", f"{NAME}/status", lambda report: report["output"]["taskInfo"])
    found["status"] = await becomes(lambda s: any(each["value"] == "1000" for each in s["metrics"]))
    found["metrics"] = {each["key"]: each["value"] for each in found["status"]["status"]["metrics"]}
    found["insert"], found["topics"] = c.exchanged(NAME)
    found["flow"] = {"created": await c.seen(NAME)}
    found |= await reported(c, pod)
    await w.apply(service("elsewhere", edge=edge, cloud=w.api.unique("ghost")))
    found["no-node"] = await c.resource("elsewhere", JOINT, NEPTUNE, because("NodeNotFound"))
    w.player.behave(failed, prefix=f"{NAME}-deployment-edge")
    found["failed"] = await becomes(lambda s: s["phase"] == "Failed")
    c.heard.clear()
    await w.delete(NAME, JOINT, NEPTUNE)
    await c.gone(NAME, JOINT, NEPTUNE)
    found["flow"]["deleted"] = await c.seen(NAME)
    return found


class Unsure:
    """Finds one box, and is not sure of it: hard for IBT."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"boxes": [[0, 0, 1, 1, 0.3, "helmet"]]}


async def reported(c: Cluster, pod: Body) -> Documents:
    """Run a pod's worker with the environment that GM gave it, and another that cannot start; keep their reports."""
    bodies: list[dict[str, Any]] = []

    async def hear(delivery: Delivery[Any]) -> None:
        bodies.append({**json.loads(bytes(delivery.packet.payload)), "topic": delivery.packet.topic})

    giver = Giver(c.w.api.client, pod, c.host, c.folder)
    environment = await giver.environment(pod["spec"]["containers"][0])
    environment |= {"HALIMEDE_HTTP": "off", "HALIMEDE_STATE": str(c.folder / "state")}
    settings = read_environment("edge", environment, own_estimator=True)
    async with MemoryBus("ear", c.broker) as ear:
        await ear.subscribe(topics.WORKER_INFO.filter(), hear)
        stop = asyncio.Event()
        worker = asyncio.create_task(serve(settings, connect(c), stop, Unsure))
        await eventually(lambda: worker.done() or any(body["status"] == "running" for body in bodies), PATIENCE)
        frame = new_frame(np.full((4, 4), 150, np.uint8))
        await ear.publish(topics.CAMERA_FRAME.at(ns=c.w.namespace, camera=NAME), pack(frame))
        await eventually(lambda: worker.done() or (bodies[-1].get("taskInfo") or {}).get("inferenceNumber"), PATIENCE)
        stop.set()
        await worker
        counted = [body for body in bodies if body["status"] == "running"]
        found = {"info": counted[-1], "last-info": bodies[-1]}
        with contextlib.suppress(WorkerError):
            await serve(dataclasses.replace(settings, hem_name="NoSuchAlgorithm"), connect(c), asyncio.Event(), Unsure)
        return {**found, "failed-info": bodies[-1]}


def connect(c: Cluster) -> Any:

    def bus(
        client_id: str, *, announce: Any = None, receive_maximum: int | None = None, session_s: int = 0
    ) -> MemoryBus:
        return MemoryBus(client_id, c.broker, announce, receive_maximum=receive_maximum or 1000, session_s=session_s)

    return bus


async def several(c: Cluster) -> Documents:
    """Take a multi-edge service through its life, and keep what is published of it."""
    w, found = c.w, Documents()
    name, version = "crossing", "sedna.io/v1alpha1"
    north, south, cloud = c.nodes["edge0"], c.nodes["edge1"], c.nodes["cloud0"]
    await w.apply(multi_edge(name, cloud=cloud, north=north, south=south))
    found["several-unmet"] = await c.resource(name, SEVERAL, version, because("ModelNotFound"))
    await w.apply(model("small"), multi_edge("elsewhere", north=w.api.unique("ghost")))
    found["several-no-node"] = await c.resource("elsewhere", SEVERAL, version, because("NodeNotFound"))
    found["several-status"] = await c.resource(name, SEVERAL, version, lambda s: s["phase"] == "Running")
    uid = found["several-status"]["metadata"]["uid"]
    (pod,) = [each for each in await c.pods(name) if each["spec"]["nodeName"] == north]
    c.report(info(pod["metadata"]["name"], name, SEVERAL, role="edge", ownerUid=uid))
    found["several-report"] = await c.heard_last("edge0", f"{name}/status", lambda told: told["output"]["taskInfo"])
    found["several-insert"], found["several-topics"] = c.exchanged(name)
    found["several-flow"] = {"created": await c.seen(name)}
    c.heard.clear()
    await w.delete(name, SEVERAL)
    await c.gone(name, SEVERAL, version)
    found["several-flow"]["deleted"] = await c.seen(name)
    return found


async def served(c: Cluster) -> Documents:
    """Serve the samples of InferenceModels as they are, but for their node; keep what becomes of them."""
    w, found = c.w, Documents()
    here = {"nodeName": c.nodes["edge0"], "nodeSelector": {HOSTNAME: c.nodes["edge0"]}}
    for name, change in {"negative-port": {"servingPort": -1}, "negative-replicas": {"replicas": -1}}.items():
        found[name] = await c.refused(read(SEDNA, **here, **change))
    for prefix, sample in (("served", SEDNA), ("kubeedge", KUBEEDGE)):
        body = read(sample, **here)
        await w.apply(body)
        at = ("facialexpression", SERVED, body["apiVersion"])
        found[f"{prefix}-status"] = await c.resource(*at, lambda s: s["phase"] == "Running" and s["url"])
        # no node is sent what pods serve: the resource is read from the API server
        found[f"{prefix}-insert"] = await w.find(*at)
        made = (await w.made("Deployment", "facialexpression"))["spec"]["template"]
        container = made["spec"]["containers"][0]
        given = dict(each.removeprefix("--").split("=", 1) for each in container["args"])
        version = made["metadata"]["annotations"][VERSION]
        port = int(given["rest_api_port"])
        found[f"{prefix}-server"] = {"name": given["model_name"], "version": version, "port": port}
        found.setdefault("tensorflow-pod", container)
        await w.delete(*at)
        await c.gone(*at)
    return found


async def objects(c: Cluster) -> Documents:
    """Serve the sample in other ways, and keep what GM makes of each."""
    found = Documents()
    cloud = {"deployToLayer": "cloud", "replicas": 3, "nodeName": "", "serviceType": "NodePort"}
    found["cloud-objects"] = await made(c, read(SEDNA, **cloud))
    found["edge-objects"] = await made(c, read(SEDNA, nodeName="", replicas=3))
    found["image-objects"] = await made(c, read(SEDNA, image="example.io/faces:1", targetVersion="no such one"))
    pytorch = await made(c, inference_model(frameworkType="pytorch", servingPort=8501))
    found["pytorch-pod"] = pytorch["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


async def made(c: Cluster, body: Body) -> Documents:
    """Apply an InferenceModel, return its objects by kind and the parts of its pods that have odd names; delete it."""
    w, name = c.w, body["metadata"]["name"]
    at = (name, SERVED, body["apiVersion"])
    await w.apply(body)
    await c.resource(*at, lambda s: s["observedGeneration"])
    found = Documents()
    for kind in ("Deployment", "Service"):
        found[kind] = await eventually(partial(w.object, kind, name), PATIENCE, 0.1)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    await w.delete(*at)
    await c.gone(*at)
    return {**found, "downloads": len(pod.get("initContainers", ())), "selector": pod.get("nodeSelector", {})}


async def customers(c: Cluster) -> Documents:
    """Apply the two models and the pod in front of them that are shipped for customers' requests."""
    w, found = c.w, Documents()
    for file in ("models.yaml", "router.yaml"):
        for body in manifests(DEPLOY / "router" / file):
            await w.apply(body)
            stored = await w.api.client.get(path_of(body), w.namespace, body["metadata"]["name"])
            found[body["spec"].get("deployToLayer", body["kind"])] = stored
    return {"customers": {**found, "selector": found["Deployment"]["spec"]["template"]["spec"]["nodeSelector"]}}


async def selected(c: Cluster) -> Documents:
    """Select a Model by its metadata, copy a Dataset to another node, count others; keep what becomes of them."""
    w, found = c.w, Documents()
    version = "sedna.io/v1alpha1"
    body = joint_inference("doors", edge=c.nodes["edge0"], cloud=c.nodes["cloud0"])
    body["spec"]["edgeWorker"]["model"] = {"selector": SELECTOR}
    shared = dataset("shared", nodeName=c.nodes["edge0"], syncTo={HOSTNAME: c.nodes["edge1"]})
    await w.apply(model("small"), model("big"), model("faces", **FACES), body, shared)
    found["selection"] = await c.resource("doors", JOINT, version, lambda s: s["phase"] == "Running" and s["chosen"])
    found["model-status"] = await c.resource("faces", "models", version, lambda s: s["phase"] == "Ready")
    insert = c.topics("edge0", "models/faces/insert")[-1]
    found["model-insert"] = {"topic": insert.topic, **json.loads(insert.payload)}
    await eventually(lambda: c.topics("edge1", "datasets/shared/status"), PATIENCE)
    found["synced"] = {node: len(c.topics(node, "datasets/shared/insert")) for node in c.nodes}
    found["synced-status"] = await c.resource("shared", "datasets", version, lambda s: s["conditions"])
    found["counted"] = await counted(c)
    return found


async def counted(c: Cluster) -> Documents:
    """Apply Datasets of two samples in each format; return their statuses."""
    formats = [name for name, _ in write_data(c.host / "data")]
    for name in formats:
        await c.w.apply(dataset(name, url=f"/data/{name}", format=name, nodeName=c.nodes["edge0"]))
    at = "datasets", "sedna.io/v1alpha1", lambda s: s["phase"] == "Ready"
    return {name: (await c.resource(name, *at))["status"] for name in formats}


LIVES = (control, several, served, objects, customers, selected)


async def defined(api: Api, names: dict[str, str]) -> Documents:
    """Return the definitions as the API server has them, by the names that the table uses."""
    client = api.client
    return {
        document: await client.get("CustomResourceDefinition", None, ".".join(reversed(file.split("_"))))
        for document, file in names.items()
    }


async def documents(server: tuple[Path, bool] | None, folder: Path, names: dict[str, str]) -> Documents:
    """Return what the product publishes and makes on Kubernetes, by the names that the table uses.

    ``server``: the kubeconfig of a real API server, and whether its controllers run; None: on the double. ``names``:
    the files of the definitions. Each life has a namespace, a broker and a GM of its own. On doubles all run
    at once; on one server they run one after another, since each GM acts on all of it.
    """
    alone = asyncio.Semaphore(1 if server else len(LIVES))

    async def live(life: Any) -> Documents:
        home = folder / life.__name__
        home.mkdir(parents=True)
        where = on_server(server[0], home, managed=server[1]) if server else on_double(home)
        async with alone, where as api, cluster(api, home) as made:
            found = await life(made)
            text = json.dumps({**found, **(await defined(api, names) if life is control else {})})
            for real, name in made.names.items():
                text = text.replace(real, name)
            return dict(json.loads(text))

    async with asyncio.TaskGroup() as tasks:
        lives = [tasks.create_task(live(life)) for life in LIVES]
    found = Documents()
    for each in lives:
        found |= each.result()
    return found
