"""The whole system on an API server, nothing scripted: a broker with users and rules, GMs as processes, LCs and workers
as the pods that our manifests and GM describe, run by small kubelets on nodes of this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples.digits import train
from halimede import topics
from halimede.access.certs import make_certificates
from halimede.access.manifests import secrets_of
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Site
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result, StatusDocument
from services.broker import MosquittoProcess
from tests.e2e.running import DIGITS, ROOT, digits
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.kubelet import Controllers, Kubelet, Pod, until
from tests.kubernetes.sandbox import Network, dies_with_us
from tests.kubernetes.surroundings import Gm, sha256, user
from tests.kubernetes.world import DEPLOY, definitions, documents, gm_rules, path_of
from tests.origins import Origin, serving
from tests.ports import free_port

EDGE, NODE = "node-role.kubernetes.io/edge", "halimede.io/node"
CAMERAS = ("cam0", "cam1")
LOOPBACK = "127.0.0.1"
#: the addresses of the nodes of such a cluster, where its models are
SANDBOXES = "198.18.0.0/15"


@dataclass
class Whole:
    """What a test has of it.

    ``accepted``: ids of frames that a worker was there for; ``answers``: results by id; ``copies``: how often each;
    ``shown``: services with a status on the broker; ``downloads``: what the model server was asked for.
    """

    api: Api
    home: Path
    network: Network
    broker: str
    origin: Origin
    kubelets: dict[str, Kubelet]
    edges: tuple[str, str]
    cloud: str
    camera: MqttBus
    viewer: MqttBus
    gms: list[Gm] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)
    answers: dict[str, Result] = field(default_factory=dict)
    copies: Counter[str] = field(default_factory=Counter)
    shown: set[str] = field(default_factory=set)

    @property
    def namespace(self) -> str:
        return self.api.namespace

    @property
    def downloads(self) -> list[str]:
        return [each.path for each in self.origin.asked]

    async def follow(self, service: str) -> None:
        """Keep every result of a service, and whether its status is shown."""

        async def on_result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.answers.setdefault(delivery.body.id, delivery.body)

        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            self.shown.add(delivery.names["name"])

        async def on_cleared(values: Mapping[str, str]) -> None:
            self.shown.discard(values["name"])

        await self.viewer.subscribe(topics.RESULT.filter(ns=self.namespace, service=service), on_result)
        await self.viewer.subscribe(topics.STATUS.filter(ns=self.namespace), on_status, cleared=on_cleared)

    async def send(self, pictures: Sequence[bytes], fps: float = 50) -> None:
        """Publish frames as a camera; those that the broker has somebody for count as accepted."""
        for i, picture in enumerate(pictures):
            frame = Frame(id=new_id(), camera=CAMERAS[0], sequence=i, encoding="png", data=memoryview(picture))
            if await self.camera.publish(topics.CAMERA_FRAME.at(ns=self.namespace, camera=CAMERAS[0]), pack(frame)):
                self.accepted.add(frame.id.hex())
            await asyncio.sleep(1 / fps)

    @property
    def unanswered(self) -> set[str]:
        return self.accepted - set(self.answers)

    def pods(self, prefix: str) -> list[Pod]:
        """Return the pods on all nodes whose names begin so and that are not to end."""
        found = [pod for kubelet in self.kubelets.values() for pod in kubelet.pods.values()]
        return [pod for pod in found if pod.name.startswith(prefix) and not pod.ending]

    def exit_codes(self, pod: Pod) -> dict[str, int]:
        """Return those of a pod that has ended, by container; none while it has not."""
        return self.kubelets[pod.node].ended.get(pod.name, {})

    def cache_owners(self) -> list[int]:
        """Return who owns the model caches that there are."""
        caches = (kubelet.root / f"var/lib/halimede/nodes/{name}/models" for name, kubelet in self.kubelets.items())
        return [cache.stat().st_uid for cache in caches if cache.exists()]

    async def status(self, name: str) -> Body:
        kind = "jointinferenceservices.sedna.io/v1alpha1"
        return ((await self.api.client.find(kind, self.namespace, name)) or {}).get("status") or {}

    async def metrics(self, name: str) -> dict[str, float]:
        return {each["key"]: float(each["value"]) for each in (await self.status(name)).get("metrics", ())}

    async def running(self, name: str, generation: int = 1) -> None:
        """Wait until a service runs, with what the user asked for last."""

        async def runs() -> bool:
            found = await self.status(name)
            return found.get("phase") == "Running" and found.get("observedGeneration", 0) >= generation

        try:
            await until(f"{name} Running", runs)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.status(name)}\n{self.story()}") from error

    async def gm(self, identity: str) -> Gm:
        """Start a GM: a candidate at first."""
        user = await self.api.user(identity, gm_rules(self.namespace))
        settings = json.loads((DEPLOY / "base" / "pods.json").read_text()) | {"hostPaths": ["/models"]}
        (self.home / "pods.json").write_text(json.dumps(settings))
        options = {
            "pods-config": self.home / "pods.json",
            "kubeconfig": user.kubeconfig,
            "namespace": self.namespace,
            "identity": identity,
            "broker": self.broker,
            "credentials": self.home / "site" / "gm",
            "store": self.home / identity,
            "http": "127.0.0.1:0",
        }
        command = [sys.executable, "-m", "halimede", "gm", "--kubernetes"]
        command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        with (self.home / f"{identity}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *dies_with_us(), *command, cwd=ROOT, stdout=log, stderr=log,
                env={**os.environ, "HALIMEDE_PODS_BROKER": self.broker, "HALIMEDE_PODS_FETCH_ALLOW": SANDBOXES},
            )  # fmt: skip
        self.gms.append(Gm(identity, process, Path(log.name)))
        return self.gms[-1]

    async def leader(self) -> str:
        lease = await self.api.client.find("Lease", self.namespace, "halimede-gm")
        return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")

    def story(self) -> str:
        """Return the logs of all, for whom a test has failed."""
        said = {gm.identity: gm.log.read_text() for gm in self.gms}
        for kubelet in self.kubelets.values():
            for log in sorted(kubelet.root.parent.glob("pods/*/*/log")):
                said[f"{kubelet.node} {log.parent.name}"] = log.read_text(errors="replace")
        return "\n".join(f"--- {name}\n{text[-4000:]}" for name, text in said.items())

    def manifests(self) -> Iterator[Body]:
        """Yield the digits example for this cluster: the small model is on edge nodes, the big one on a server."""
        for file in sorted(DIGITS.glob("*.yaml")):
            for body in documents(file):
                body["metadata"]["namespace"] = self.namespace
                if body["metadata"]["name"] == "digits-small":
                    body["spec"]["url"] = "/models/small.onnx"
                elif body["kind"] == "Model":
                    body["spec"] |= {"url": f"{self.origin.url}/big.onnx", "sha256": sha256(train.FOLDER / "big.onnx")}
                else:
                    body["spec"]["cloudWorker"]["template"]["spec"]["nodeSelector"] = {NODE: ""}
                yield body

    async def apply(self, *bodies: Body) -> None:
        for body in bodies:
            await self.api.client.create(path_of(body), self.namespace, body)

    async def delete(self, *bodies: Body) -> None:
        for body in bodies:
            await self.api.client.delete(path_of(body), self.namespace, body["metadata"]["name"])

    async def nothing(self) -> bool:
        """Whether nothing is left of any service but its Secrets."""
        kinds = [path_of(body) for body in self.manifests()]
        for kind in (*kinds, "Deployment", "Service", "HorizontalPodAutoscaler"):
            if (await self.api.client.list(kind, self.namespace))["items"]:
                return False
        pods = (await self.api.client.list("Pod", self.namespace))["items"]
        return not self.shown and {pod["metadata"]["name"] for pod in pods} == self.lcs

    @property
    def lcs(self) -> set[str]:
        return {f"lc-{node}" for node in self.kubelets}

    async def start_lcs(self) -> None:
        """Start an LC on each node, as the DaemonSet of our manifests describes it."""
        (daemons,) = (each for each in documents(DEPLOY / "base" / "lc.yaml") if each["kind"] == "DaemonSet")
        template = daemons["spec"]["template"]
        for node in self.kubelets:
            meta = {"name": f"lc-{node}", "labels": template["metadata"]["labels"]}
            body = {"metadata": meta, "spec": {**template["spec"], "nodeName": node}}
            await self.api.client.create("Pod", self.namespace, body)

    async def stop_lcs(self) -> None:
        """Delete the LCs' pods, and see them end well."""
        running = [pod for node in self.kubelets for pod in self.pods(f"lc-{node}")]
        for pod in running:
            await self.api.client.delete("Pod", self.namespace, pod.name)
        await until("LCs gone", lambda: all(self.exit_codes(pod) for pod in running))
        assert {self.exit_codes(pod)["lc"] for pod in running} == {0}


@asynccontextmanager
async def whole(api: Api, home: Path, *, tls: bool = False) -> AsyncIterator[Whole]:
    """Run everything but GM and LCs inside the block."""
    digits()  # trains the models if need be
    for definition in definitions():
        await api.install(definition)
    edges, cloud = (api.unique("edge"), api.unique("edge")), api.unique("cloud")
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(Network())
        site = Site(
            broker=[LOOPBACK, network.host],
            nodes=[*edges, cloud],
            cameras=list(CAMERAS),
            consumers=["viewer"],
            pools=True,
            passwords=not tls,
        )
        (make_certificates if tls else make_passwords)(site, home / "site")
        port = free_port()
        rules = listener_lines(home / "site", tls=tls)
        # these two hold for all listeners
        own = [line for line in rules if not line.startswith(("acl_file", "password_file"))]
        access = [*rules, f"listener {port} {network.host}", *own]
        await stack.enter_async_context(MosquittoProcess(home / "broker", port=port, access=access, secure=tls))
        broker = f"mqtt{'s' if tls else ''}://{network.host}:{port}"
        camera = await stack.enter_async_context(user(broker, home / "site", "cameras", CAMERAS[0]))
        viewer = await stack.enter_async_context(user(broker, home / "site", "consumers", "viewer"))
        origin = stack.enter_context(serving((train.FOLDER / "big.onnx").read_bytes(), network.host))
        made = Whole(api, home, network, broker, origin, {}, edges, cloud, camera, viewer)
        await stack.enter_async_context(nodes(made, site))
        stack.push_async_callback(stopped, made)
        yield made


async def stopped(made: Whole) -> None:
    for gm in made.gms:
        if gm.process.returncode is None:
            await gm.kill(signal.SIGKILL)


@asynccontextmanager
async def nodes(made: Whole, site: Site) -> AsyncIterator[None]:
    """Kubelets, the controllers of a cluster, and what our manifests have pods mount."""
    api, namespace = made.api, made.namespace
    for secret in secrets_of(site, made.home / "site", namespace=namespace, workers_in=[namespace]):
        await api.client.create("Secret", namespace, secret)
    addresses = {"metadata": {"name": "halimede"}, "data": {"node-broker": made.broker, "fetch-allow": SANDBOXES}}
    await api.client.create("ConfigMap", namespace, addresses)
    async with AsyncExitStack() as stack:
        for name in (*made.edges, made.cloud):
            await api.node(name, {EDGE: ""} if name in made.edges else {NODE: ""})
            kubelet = Kubelet(api.client, namespace, name, made.home / name, made.network)
            made.kubelets[name] = await stack.enter_async_context(kubelet)
            if name in made.edges:
                (kubelet.root / "models").mkdir()
                shutil.copy(train.FOLDER / "small.onnx", kubelet.root / "models")
        await stack.enter_async_context(Controllers(api.client, namespace, collects=not api.managed))
        yield
