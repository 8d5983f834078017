"""Workers that only take frames, and go on with one another's: the real peers, sources and takeover, in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.bus import Bus, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.worker.membership import Membership, peer_will
from halimede.worker.session_failover import SessionFailover
from halimede.worker.session_names import session_client_id, session_name
from halimede.worker.sources.base import SourceContext
from halimede.worker.sources.camera_topics import CameraSource
from tests.unit.multiedge.world import Running

NS, SERVICE, GROUP = "default", "lobby", "lobby.test"
#: the session key of the service
KEY = "0123456789abcdef" * 2
ROOM, KEPT_S = 4, 60


class Node(Running):
    """One member. It keeps what it is given until ``answer``, or answers at once while ``quick``."""

    def __init__(self, site: Site, name: str, *cameras: str) -> None:
        self.site, self.name = site, name
        self.quick = True
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.up = asyncio.Event()
        self._cameras = list(cameras) or [name]
        self.intake = session_name(f"intake.{NS}.{name}", self._cameras, "u-1", KEY)
        #: the client id of that session, a secret
        self.session = session_client_id(self.intake, KEY)
        self.peers: Membership
        self.takeover: SessionFailover
        self.source: CameraSource
        super().__init__(asyncio.Event(), asyncio.create_task(self._run()))

    def connect(self, client_id: str, *, receive_maximum: int | None = None, **options: Any) -> MemoryBus:
        bus = MemoryBus(client_id, self.site.broker, receive_maximum=receive_maximum or 1000, **options)
        self.buses.append(bus)
        return bus

    async def _run(self) -> None:
        will = peer_will(topics.PEER, NS, SERVICE, self.name)
        async with self.connect(f"worker.{NS}.{self.name}", announce=lambda: will) as bus:
            await bus.wait_connected(5)
            self.peers = Membership(
                bus, topics.PEER, namespace=NS, service=SERVICE, worker=self.name, intake=self.intake
            )
            self.takeover = SessionFailover(
                self.peers, self.connect, self, group=GROUP, receive_maximum=ROOM, session_s=KEPT_S, key=KEY
            )
            await self.peers.start()
            async with asyncio.TaskGroup() as group:
                saying = group.create_task(self.peers.run())
                guarding = group.create_task(self.takeover.run(self.stop))
                await self.peers.wait_handed_back(2)
                self.source = CameraSource(
                    SourceContext(
                        NS, GROUP, FrameSourceSpec(cameras=self._cameras), self._frames, bus.dead_letter, durable=True
                    )
                )
                taking = group.create_task(self.source.run(self, self.stop))
                self.up.set()
                await self.stop.wait()
                await taking
                await guarding
                await self.peers.withdraw(orderly=not self.source.unfinished)
                saying.cancel()

    def _frames(self) -> Bus:
        bus = self.connect(self.intake, receive_maximum=ROOM, session_s=KEPT_S)
        bus.session_id = self.session
        return bus

    async def offer(self, payload: bytes | memoryview, camera: str, **options: Any) -> None:
        """Take a frame (``sources.Intake``)."""
        number, answered = int(bytes(payload)), options["answered"]
        if self.quick:
            self._answer(number, answered)
        else:
            self.waiting.append((number, answered))

    def answer(self, most: int = 1000) -> None:
        """Answer what it has, or so many of them."""
        waiting, self.waiting = self.waiting[:most], self.waiting[most:]
        for number, answered in waiting:
            self._answer(number, answered)

    def _answer(self, number: int, answered: Callable[[], None]) -> None:
        self.site.answers.setdefault(number, []).append(self.name)
        answered()


class Site:
    """A broker, nodes on it, and who answered which frame."""

    def __init__(self, camera: MemoryBus, broker: MemoryBroker) -> None:
        self.broker, self.camera = broker, camera
        self.answers: dict[int, list[str]] = {}
        self.nodes: list[Node] = []
        self._sent = 0

    async def node(self, name: str, *cameras: str) -> Node:
        node = Node(self, name, *cameras)
        self.nodes.append(node)
        waiting = asyncio.create_task(node.up.wait())
        await asyncio.wait([waiting, node.task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if node.task.done():
            node.task.result()
        await asyncio.sleep(0.2)
        return node

    async def send(self, camera: str, count: int = 1) -> None:
        """Publish frames that are their numbers; all of them have to find a subscriber."""
        for _ in range(count):
            topic = topics.CAMERA_FRAME.at(ns=NS, camera=camera).text
            assert await self.camera.send(Packet(topic, b"%d" % self._sent)) == 0
            self._sent += 1

    def answered(self) -> bool:
        return set(self.answers) == set(range(self._sent))

    def by(self) -> Counter[str]:
        return Counter(name for names in self.answers.values() for name in names)


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """Run a site; nodes that are left are killed at its end."""
    broker = MemoryBroker()
    async with MemoryBus("camera", broker) as camera:
        await camera.wait_connected(1)
        made = Site(camera, broker)
        try:
            yield made
        finally:
            for node in made.nodes:
                await node.kill()
