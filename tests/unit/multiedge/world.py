"""Members of a multi-edge service as they run, over a broker in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.multiedge import ApplicationSpec
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBus
from halimede.messages import Peer, Result, Track
from halimede.multiedge.roles import joint, member
from halimede.multiedge.settings import MemberSettings
from halimede.worker.bootstrap import serve
from tests.simulated import eventually
from tests.unit.worker.world import NS, SERVICE, World

APPLICATIONS = "tests.unit.multiedge.applications"


class Pixel:
    """A model that says the first pixel's value."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"label": str(int(np.asarray(data).flat[0])), "probabilities": [1.0]}


class Slow(Pixel):
    """Takes its time, in which the model's thread is busy."""

    def predict(self, data: Any) -> dict[str, Any]:
        time.sleep(0.005)
        return super().predict(data)


@dataclass
class Running:
    """One worker that runs: ``stop`` ends it in order, ``kill`` as a crash would."""

    stop: asyncio.Event
    task: asyncio.Task[None]
    buses: list[MemoryBus] = field(default_factory=list)

    async def kill(self) -> None:
        for bus in self.buses:
            bus.cut()
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def end(self) -> None:
        self.stop.set()
        if not self.task.cancelled():
            await self.task


class Members(World):
    """A broker, members and perhaps a joint on it, a camera, and who listens to what they say."""

    model: Any = Pixel

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.running: list[Running] = []
        self.peers: dict[str, Peer] = {}
        self.tracks: list[Track] = []

    async def listen(self, camera: MemoryBus) -> None:
        await super().listen(camera)

        async def peer(delivery: Delivery[Peer]) -> None:
            self.peers[delivery.names["worker"]] = delivery.body

        async def gone(names) -> None:
            self.peers.pop(names["worker"], None)

        async def track(delivery: Delivery[Track]) -> None:
            self.tracks.append(delivery.body)

        await camera.subscribe(topics.MULTI_RESULT.filter(), self.on_result)
        await camera.subscribe(topics.PEER.filter(), peer, cleared=gone)
        await camera.subscribe(topics.TRACK.filter(), track)

    def member_settings(self, name: str, application: str, *, cloud: bool = False, **changes: Any) -> MemberSettings:
        role = "cloud" if name == "joint" else "edge"
        worker = self.settings(role, name, source=FrameSourceSpec(cameras=["cam0"]), hem_name="", hem_parameters={})
        return MemberSettings(
            worker=replace(worker, **changes),
            application=ApplicationSpec(name="test", entry=f"{APPLICATIONS}:{application}"),
            part=name,
            members=("a", "b", "c"),
            cameras=("cam0",),
            members_join=not cloud,
        )

    async def start(self, name: str, application: str, *, cloud: bool = False, **changes: Any) -> Running:
        """Start a member, or the joint if that is its name; return when it runs."""
        settings = self.member_settings(name, application, cloud=cloud, **changes)
        job = joint(settings) if name == "joint" else member(settings)
        stop = asyncio.Event()
        mine: list[MemoryBus] = []

        def connect(client_id: str, **options: Any) -> MemoryBus:
            mine.append(self.connect(client_id, **options))
            return mine[-1]

        model = None if name == "joint" else self.model
        task = asyncio.create_task(serve(settings.worker, connect, stop, model, job))
        await eventually(lambda: task.done() or self.status(name) == "running")
        if task.done():
            await task
        await eventually(lambda: name in self.peers)
        self.running.append(Running(stop, task, mine))
        return self.running[-1]

    async def answers(self, ids: Iterable[str]) -> list[Result]:
        return [await self.answer(id_) for id_ in ids]


M = TypeVar("M", bound=Members)


@contextlib.asynccontextmanager
async def members(folder: Path, kind: Callable[[Path], M] = Members) -> AsyncIterator[M]:  # type: ignore[assignment]
    """Run members of a service; those that still run at the end stop in order."""
    made = kind(folder)
    async with MemoryBus("camera", made.broker) as camera:
        await made.listen(camera)
        yield made
        for running in made.running:
            await running.end()


__all__ = ["NS", "SERVICE", "Members", "Running", "members"]
