"""Members of a multi-edge service as they run, over a broker in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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


class Members(World):
    """A broker, members and perhaps a joint on it, a camera, and who listens to what they say."""

    model: Any = Pixel

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.peers: dict[str, Peer] = {}
        self.tracks: list[Track] = []

    async def listen(self, camera: MemoryBus) -> None:
        await super().listen(camera)

        async def result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.id, delivery.body)

        async def peer(delivery: Delivery[Peer]) -> None:
            self.peers[delivery.names["worker"]] = delivery.body

        async def gone(names) -> None:
            self.peers.pop(names["worker"], None)

        async def track(delivery: Delivery[Track]) -> None:
            self.tracks.append(delivery.body)

        await camera.subscribe(topics.MULTI_RESULT.filter(), result)
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

        def connect(client_id: str, **options: Any) -> Any:
            bus = self.connect(client_id, **options)
            mine.append(bus)
            return bus

        model = None if name == "joint" else self.model
        task = asyncio.create_task(serve(settings.worker, connect, stop, model, job))
        await eventually(lambda: task.done() or self.status(name) == "running")
        if task.done():
            await task
        await eventually(lambda: name in self.peers)
        return Running(stop, task, mine)


@contextlib.asynccontextmanager
async def members(folder: Path) -> AsyncIterator[Members]:
    made = Members(folder)
    async with MemoryBus("camera", made.broker) as camera:
        await made.listen(camera)
        yield made


__all__ = ["NS", "SERVICE", "Members", "Running", "members"]
