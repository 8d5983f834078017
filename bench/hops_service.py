"""What an applied service costs in calls: a global manager and a local controller on one event loop, over Mosquitto.

Store, cluster, model files and bus are the real ones. Workers are not started: the other process reports for each of
them that it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bench.hops_calls import CallRecorder, Cost
from bench.hops_client import Client, client
from bench.hops_frames import WorkersError, write_model
from halimede.bus.mqtt import MqttBus
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from services.lc.app import Config, LocalController
from tests.integration.gm_world import model, service
from tests.integration.lc_world import FakeLauncher

NODE = "node0"
#: services before those that count, and those that count
WARM, COUNT = 2, 9
#: seconds: until connected; after a service runs, so that acknowledgements and reports are in its window; between two
#: services, so that the node has removed the models of the one before; of watching an idle system
CONNECT, QUIET, BETWEEN, IDLE = 10.0, 0.3, 4.0, 5.0


class Launcher(FakeLauncher):
    """Starts no workers, and notifies of each that it runs."""

    def __init__(self, notify: Callable[..., None]) -> None:
        super().__init__()
        self._notify = notify

    def start(self, start: Any) -> Any:
        """Return a process that only seems to run."""
        process = super().start(start)
        worker = start.worker
        info = {"name": worker.name, "namespace": worker.namespace, "owner_name": start.service.name}
        at = {"node": NODE, "ns": worker.namespace, "worker": worker.name}
        self._notify(at=at, info={**info, "status": "running"})
        return process


@contextlib.asynccontextmanager
async def system(folder: Path, broker: MosquittoProcess, operator: Client) -> AsyncIterator[None]:
    """Run a global manager and a local controller within the block. Raises WorkersError where one of them fails."""
    stopping = asyncio.Event()
    async with LocalCluster(folder / "gm" / "store.db") as cluster:
        gm_bus, lc_bus = MqttBus("gm", broker.url), MqttBus(f"lc.{NODE}", broker.url)
        controller = LocalController(
            Config(NODE, folder / "lc", broker.url), lc_bus, launcher=Launcher(operator.notify)
        )
        gm = asyncio.create_task(GlobalManager(gm_bus, cluster, cluster).run(), name="gm")
        lc = asyncio.create_task(controller.run(stopping), name="lc")
        try:
            await gm_bus.wait_connected(CONNECT)
            await lc_bus.wait_connected(CONNECT)
            yield
        finally:
            stopping.set()
            await asyncio.wait([lc], timeout=CONNECT)
            for task in (gm, lc):
                task.cancel()
            ends = await asyncio.gather(gm, lc, return_exceptions=True)
            if errors := [end for end in ends if isinstance(end, Exception)]:
                raise WorkersError(f"GM or LC failed: {errors[0]!r}") from errors[0]


async def measure(recorder: CallRecorder) -> tuple[list[Cost], Cost]:
    """Count the calls of applied services, and those of an idle system. Raises ClientError and WorkersError."""
    costs = []
    with tempfile.TemporaryDirectory(prefix="bench-hops-") as temporary:
        folder = Path(temporary)
        models = {name: write_model(folder / f"{name}.onnx", slow=name == "big") for name in ("small", "big")}
        async with (
            MosquittoProcess(folder / "broker") as broker,
            client("operator", broker.url) as operator,
            system(folder, broker, operator),
        ):
            for name, path in models.items():
                await operator.request(apply=model(name, url=path))
            for number in range(WARM + COUNT):
                await asyncio.sleep(BETWEEN)
                applied = service(f"service{number}", edge=NODE, cloud=NODE)
                if number < WARM:
                    await operator.request(apply=applied)
                else:
                    costs.append(await one(recorder, operator, applied))
                await operator.request(delete=applied["metadata"]["name"])
            await asyncio.sleep(BETWEEN)
            idle = await recorder.record(lambda: asyncio.sleep(IDLE))
    return costs, idle


async def one(recorder: CallRecorder, operator: Client, applied: dict[str, Any]) -> Cost:
    """Count the calls from before a service is applied to shortly after its status is Running."""

    async def work() -> None:
        await operator.request(apply=applied)
        await asyncio.sleep(QUIET)

    return await recorder.record(work)
