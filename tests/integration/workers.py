"""Workers as processes over a real broker, real models, and what a test sees of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.frames import new_id, pack
from halimede.messages import DeadLetter, Frame, Load, Result, TaskInfo, WorkerInfo
from halimede.tracing import origin
from services.broker import MosquittoProcess
from tests.digits import Digits
from tests.scraping import Families, scrape, value
from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
#: seconds: for a worker to start or to end, on a busy machine
START_S = 60.0

PREPROCESS = [
    {"op": "grayscale"},
    {"op": "resize", "width": 8, "height": 8},
    {"op": "scale", "factor": 1 / 240},
    {"op": "layout", "order": "flat"},
    {"op": "cast", "dtype": "float32"},
]


class Worker:
    """One worker process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, patience(START_S))


class Site:
    """One service on a broker: its workers, a camera, and everything that is published."""

    def __init__(self, broker: MosquittoProcess, bus: MqttBus, service: str, folder: Path) -> None:
        self.broker, self.bus, self.service, self.folder = broker, bus, service, folder
        #: names of its workers, where it has one of a role
        self.edge, self.cloud = f"{service}-e", f"{service}-c"
        self.results: dict[str, Result] = {}
        self.copies: Counter[str] = Counter()
        self.infos: dict[str, WorkerInfo] = {}
        self.loads: dict[str, Load] = {}
        self.letters: list[DeadLetter] = []
        self.workers: list[Worker] = []
        self.sent: dict[str, int] = {}

    async def listen(self) -> None:
        async def result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.id, delivery.body)

        async def info(delivery: Delivery[WorkerInfo]) -> None:
            if delivery.body.owner_name == self.service:
                self.infos[delivery.body.name] = delivery.body

        async def load(delivery: Delivery[Load]) -> None:
            self.loads[delivery.names["worker"]] = delivery.body

        async def no_load(names: Mapping[str, str]) -> None:
            self.loads.pop(names["worker"], None)

        async def letter(delivery: Delivery[DeadLetter]) -> None:
            if self.service in delivery.body.topic:
                self.letters.append(delivery.body)

        names = {"ns": "default", "service": self.service}
        await self.bus.wait_connected(patience(START_S))
        await self.bus.subscribe(topics.RESULT.filter(**names), result)
        await self.bus.subscribe(topics.LOAD.filter(**names), load, cleared=no_load)
        await self.bus.subscribe(topics.WORKER_INFO.filter(), info)
        await self.bus.subscribe(topics.DEAD_LETTER.filter(), letter)

    def environment(self, role: str, name: str, model: Path | str, **changes: str) -> dict[str, str]:
        spec = {
            "url": str(model) or "/none", "format": "onnx", "labels": list("0123456789"), "preprocess": PREPROCESS,
            "postprocess": {"output": "probabilities"},
        }  # fmt: skip
        told = {
            "NAMESPACE": "default", "SERVICE_NAME": self.service, "SERVICE_UID": "u-1", "WORKER_NAME": name,
            "NODE_NAME": f"node-{self.service}", "MODEL_URL": str(model), "MODEL_SPEC": json.dumps(spec),
            "HALIMEDE_BROKER": self.broker.url, "HALIMEDE_STATE": str(self.folder / name), "LC_PERIOD": "0.1",
            "GRACE_S": "10", "HALIMEDE_LOG": "json", "OMP_NUM_THREADS": "1",
            "SSL_CERT_FILE": os.devnull,  # the authorities of the internet, where no test goes, are not read
        }  # fmt: skip
        if role == "edge":
            told |= {
                "HEM_NAME": "Margin", "HEM_PARAMETERS": '[{"key": "threshold_margin", "value": "0.19"}]',
                "SOURCE": json.dumps({"cameras": [self.service]}), "DEADLINE_MS": "5000",
            }  # fmt: skip
        return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **told, **changes}

    def start(self, role: str, name: str, model: Path | str, **changes: str) -> Worker:
        """Start our own worker on an ONNX model."""
        command = [sys.executable, "-m", "halimede", "worker", role]
        return self._start(command, name, self.environment(role, name, model, **changes))

    async def run_edge(self, model: Path | str, **changes: str) -> Worker:
        """Start the edge worker, and wait until it takes frames."""
        worker = self.start("edge", self.edge, model, **changes)
        await self.running(self.edge)
        return worker

    async def run_both(self, digits: Digits, **changes: str) -> tuple[Worker, Worker]:
        """Start the edge worker, with these changes, and the cloud worker; wait until they take frames."""
        cloud, edge = (
            self.start("cloud", self.cloud, digits.big),
            self.start("edge", self.edge, digits.small, **changes),
        )
        await self.running(self.cloud, self.edge)
        return edge, cloud

    def start_script(self, role: str, name: str, code: str, **changes: str) -> Worker:
        """Start a user's script, as the neptune form does: in its own folder."""
        folder = self.folder / f"{name}-script"
        folder.mkdir(exist_ok=True)
        (folder / "worker.py").write_text(textwrap.dedent(code))
        return self._start([sys.executable, "worker.py"], name, self.environment(role, name, "", **changes), folder)

    async def run_script(self, role: str, code: str, **changes: str) -> Worker:
        """Start a user's script as the worker of a role, and wait until it takes frames."""
        name = self.edge if role == "edge" else self.cloud
        worker = self.start_script(role, name, code, **changes)
        await self.running(name)
        return worker

    def _start(self, command: list[str], name: str, told: dict[str, str], cwd: Path = ROOT) -> Worker:
        self.infos.pop(name, None)
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(command, cwd=cwd, env=told, stdout=file, stderr=file)
        worker = Worker(name, process, log)
        self.workers.append(worker)
        return worker

    async def running(self, *names: str) -> None:
        """Wait until workers run and take frames, and until who asks knows the cloud workers among them."""

        def all_run() -> bool:
            for worker in self.workers:
                assert worker.process.poll() in {None, 0, -signal.SIGKILL}, worker.log.read_text()
            return all(name in self.infos and self.infos[name].status == "running" for name in names)

        await eventually(all_run, START_S)

        clouds = [name for name in names if self._is(name, "cloud")]
        await eventually(lambda: self.loads.keys() >= set(clouds), START_S)
        await self.known(*clouds)

    async def known(self, *clouds: str) -> None:
        """Wait until each edge worker that runs knows what cloud workers can take."""
        alive = {worker.name for worker in self.workers if worker.process.poll() is None} & self.infos.keys()
        edges = [name for name in alive if self._is(name, "edge")]

        async def all_known() -> bool:
            pairs = itertools.product(edges, clouds)
            return all([await self.metric(edge, "cloud_credits", cloud_worker=cloud) > 0 for edge, cloud in pairs])

        await eventually(all_known, START_S, 0.05)

    async def metric(self, worker: str, name: str, **labels: str) -> float:
        """Return one of a worker's metrics."""
        return value(await self._scraped(worker), f"halimede_worker_{name}", **labels)

    async def _scraped(self, worker: str) -> Families:
        async with aiohttp.ClientSession() as session:
            return await scrape(session, self.infos[worker].http)

    def _is(self, name: str, role: str) -> bool:
        """Whether a worker has that role in a joint inference service: those of other kinds publish no load."""
        info = self.infos[name]
        return (info.role, info.owner_kind) == (role, "jointinferenceservice")

    def counts(self, name: str) -> TaskInfo:
        info = self.infos[name].task_info if name in self.infos else None
        return info or TaskInfo()

    async def publish(self, payload: bytes, qos: int = 1, properties: Mapping[str, str] | None = None) -> None:
        address = topics.CAMERA_FRAME.at(ns="default", camera=self.service)
        await self.bus.publish(address, payload, qos=qos, properties=properties)

    async def send(self, pictures: list[bytes], fps: float = 200) -> None:
        for number, picture in enumerate(pictures):
            frame = Frame(id=new_id(), sequence=number, encoding="png", data=memoryview(picture))
            self.sent[frame.id.hex()] = number
            await self.publish(pack(frame), properties=origin(frame.id))
            await asyncio.sleep(1 / fps)

    async def answered(self, timeout_s: float = START_S) -> None:
        """Wait until every frame that was sent has its result."""
        await eventually(lambda: set(self.sent) <= set(self.results), timeout_s)

    async def send_all(self, pictures: list[bytes], fps: float = 200) -> None:
        """Send pictures, and wait for their answers."""
        await self.send(pictures, fps)
        await self.answered()

    def by(self, who: str) -> list[Result]:
        return [result for result in self.results.values() if result.by == who]

    def reasons(self) -> Counter[str]:
        return Counter(result.reason for result in self.results.values() if result.degraded)


@contextlib.asynccontextmanager
async def site(broker: MosquittoProcess, service: str, folder: Path) -> AsyncIterator[Site]:
    """Watch a service; all its workers are killed at the end."""
    async with MqttBus(f"camera-{service}", broker.url) as bus:
        made = Site(broker, bus, service, folder)
        await made.listen()
        try:
            yield made
        finally:
            for worker in made.workers:
                worker.kill()


def train(folder: Path) -> tuple[Path, Path, Any]:
    """Write a small and a big model of real digits; return their paths and the other half of the data."""
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    from examples.digits import data

    split = data.load()
    paths = []
    for name, model in (("small", LogisticRegression(C=0.05, max_iter=500)), ("big", KNeighborsClassifier(3))):
        model.fit(split.train_x, split.train_y)
        onnx = to_onnx(model, split.train_x[:1], options={id(model): {"zipmap": False}})
        path = folder / f"{name}.onnx"
        path.write_bytes(onnx.SerializeToString())
        paths.append(path)
    return paths[0], paths[1], split
