"""Workers that share frames, in simulated time: everything is real but the model's time, the wires and the clock.

What a packet costs the broker and the clients, each of which handles one at a time, is given (``Costs``); the bench
measures it on Mosquitto. Cameras hand frames to their worker directly; what they would cost the broker is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.memory.connection import MemoryTransport
from halimede.bus.transport import Transport
from halimede.frames import new_frame, pack
from halimede.messages import Load, Result
from halimede.multiedge.peer_offload import LIMITS, SHARE, Balance, PeerOffload, SpareCapacity
from halimede.offload.channel import hop
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import EdgeLimits, RequestIntake
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import ResultResponder, result_outbox
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from halimede.worker.membership import Membership, peer_will
from halimede.worker.roles import origin
from tests.unit.frames.clouds import NS, SERVICE, Brightness
from tests.unit.worker.world import World as Workers

#: packets of one QoS 1 message: in, acknowledged, out, acknowledged
PACKETS = 4
#: frames that a broker has under way to a worker
INSIDE = 64


@dataclass(frozen=True)
class Costs:
    """Seconds: of the broker for a packet, of a client for a packet, and of the way between them."""

    broker_s: float = 0.000_010
    client_s: float = 0.000_100
    way_s: float = 0.000_200


class Turns:
    """Something that handles one packet after the other."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.busy_s = 0.0
        self._free = 0.0

    def take(self, count: int = 1) -> float:
        """Return when it is done with that many more."""
        self._free = max(self._free, asyncio.get_running_loop().time()) + count * self.cost_s
        self.busy_s += count * self.cost_s
        return self._free


class PacedWire:
    """One direction of a connection: first one side's time, then the way, then the other's."""

    def __init__(self, link: Transport, first: Turns, then: Turns, way_s: float) -> None:
        self._link, self._first, self._then, self._way_s = link, first, then, way_s

    def carry(self, arrive: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_at(self._first.take() + self._way_s, self._there, arrive)

    def _there(self, arrive: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_at(self._then.take(), self._arrived, arrive)

    def _arrived(self, arrive: Callable[[], None]) -> None:
        if not self._link.ended.done():
            arrive()


class PacedBus(MemoryBus):
    def __init__(self, client_id: str, broker: MemoryBroker, at_broker: Turns, here: Turns, way_s: float) -> None:
        will = peer_will(topics.PEER, NS, SERVICE, client_id)
        super().__init__(client_id, broker, lambda: will)
        self.at_broker, self.here, self._way_s = at_broker, here, way_s

    async def _open(self, *args: Any) -> Transport:
        link = await super()._open(*args)
        assert isinstance(link, MemoryTransport)
        link._up = PacedWire(link, self.here, self.at_broker, self._way_s)  # type: ignore[assignment]
        link._down = PacedWire(link, self.at_broker, self.here, self._way_s)  # type: ignore[assignment]
        return link


class SimulatedThread(ModelThread):
    """A model's thread in which each sample takes ``service_s`` simulated seconds."""

    def __init__(self, service_s: float) -> None:
        super().__init__("simulated")
        self.service_s = service_s
        self._free = asyncio.Lock()

    async def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async with self._free:
            outcomes, cpu_ms = work(*args, **kwargs)
            took = self.service_s * len(outcomes)
            await asyncio.sleep(took)
        for outcome in outcomes:
            outcome.ms = took * 1000
        return outcomes, cpu_ms


@dataclass
class Site:
    """All workers of one service. ``answered`` counts results by worker, ``ms`` has each one's time."""

    service_s: Sequence[float]
    costs: Costs = Costs()
    share: bool = True
    seed: int = 0
    skipped: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    by: Counter[str] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)
    ms: list[float] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)

    @property
    def capacity(self) -> float:
        """Frames a second that all of them can answer."""
        return sum(1 / each for each in self.service_s)

    async def result(self, delivery: Delivery[Result]) -> None:
        said = delivery.body
        self.answered[said.worker] += 1
        self.by[said.by] += 1
        self.ids[said.id] += 1
        self.ms.append(said.total_ms)

    def forget(self) -> None:
        for each in (self.answered, self.by, self.ids, self.ms):
            each.clear()
        self.skipped = 0


@dataclass
class Node:
    """One worker, and what its cameras do with it."""

    name: str
    site: Site
    edge: EdgeWorker
    requests: RequestIntake
    sharing: PeerOffload
    peers: Membership
    bus: PacedBus
    thread: SimulatedThread
    waiting: int = 0

    async def camera(self, rate: float, chance: random.Random, count: int = sys.maxsize) -> None:
        """Offer frames at ``rate`` a second, more or less; what finds another one waiting is passed over."""
        clock = asyncio.get_running_loop()
        payload = new_frame(np.zeros((4, 4), np.uint8))
        async with asyncio.TaskGroup() as group:
            at = clock.time()
            for _ in range(count):
                at += chance.expovariate(rate)
                await asyncio.sleep(max(0, at - clock.time()))
                self.bus.at_broker.take(PACKETS)
                self.bus.here.take(PACKETS // 2)
                if self.waiting:
                    self.site.skipped += 1
                    continue
                self.waiting += 1
                payload.id = chance.randbytes(16)
                group.create_task(self._offer(pack(payload)))

    async def _offer(self, payload: bytes) -> None:
        try:
            await self.edge.intake.offer(payload, "cam0")
        finally:
            self.waiting -= 1


def rates(site: Site, cameras: str, load: float) -> dict[str, float]:
    """Return how many frames a second come to each worker: ``load`` times what all can do, parted evenly among some."""
    names = list(site.nodes)
    those = {"one": names[:1], "half": names[: (len(names) + 1) // 2], "every": names, "slow": names[-1:]}[cameras]
    return {name: site.capacity * load / len(those) for name in those}


@contextlib.asynccontextmanager
async def site(service_s: Sequence[float], **options: Any) -> AsyncIterator[Site]:
    """Start one worker for each service time, and let them find one another."""
    made = Site(service_s, **options)
    broker, at_broker = MemoryBroker(seed=made.seed), Turns(made.costs.broker_s)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        consumer = await stack.enter_async_context(MemoryBus("consumer", broker))
        await consumer.wait_connected(1)
        await consumer.subscribe(topics.MULTI_RESULT.filter(), made.result)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        work: list[Any] = []
        for number, each in enumerate(service_s):
            name = f"w{number}"
            bus = PacedBus(name, broker, at_broker, Turns(made.costs.client_s), made.costs.way_s)
            await stack.enter_async_context(bus)
            await bus.wait_connected(1)
            ledger = stack.enter_context(Ledger(folder / name, "u"))
            node, parts = await _node(made, bus, ledger, each)
            made.nodes[name] = node
            work += parts
        await asyncio.gather(*(node.peers.start() for node in made.nodes.values()))
        tasks = [group.create_task(one) for one in work]
        await asyncio.sleep(1)
        yield made
        for node in made.nodes.values():
            node.bus.cut()  # nothing comes in any more
        for task in tasks:
            task.cancel()


async def _node(site: Site, bus: PacedBus, ledger: Ledger, service_s: float) -> tuple[Node, list[Any]]:
    name = bus.client_id
    thread = SimulatedThread(service_s)
    slot = ModelSlot(LoadedModel(Brightness(), thread))
    settings = Workers(Path(), broker=MemoryBroker()).settings("edge", name, service=SERVICE)
    address = topics.MULTI_RESULT.at(ns=NS, service=SERVICE)

    def home() -> Load:
        return edge.pipeline.load()

    responder = ResultResponder(origin(settings), result_outbox(bus), address, ledger)
    chance = random.Random(f"{site.seed} {name}")
    sharing = PeerOffload(bus, NS, SERVICE, name, home, balance=Balance(choose=chance.sample))
    edge = EdgeWorker(
        slot,
        responder,
        ledger,
        thread,
        limits=EdgeLimits(inside=INSIDE),
        peers=sharing if site.share else None,
        deadline_s=settings.deadline_s,
    )
    peers = Membership(bus, topics.PEER, namespace=NS, service=SERVICE, worker=name)
    room = SpareCapacity(edge.pipeline.load, peers.touch, lambda: len(peers.others))
    peers.share = room.load
    peers.on_change(sharing.changed)
    peers.on_change(lambda *_: edge.pipeline.rebalance())
    channel = hop(NS, SERVICE, SHARE, name)
    requests = RequestIntake(bus, channel, edge.pipeline, limits=LIMITS, advertiser=room, busy=room.is_overloaded)
    await sharing.start()
    node = Node(name, site, edge, requests, sharing, peers, bus=bus, thread=thread)
    return node, [edge.run(), requests.run(), peers.run()]


async def offered(site: Site, rates: dict[str, float], *, warm_s: float = 2.0, seconds: float = 4.0) -> float:
    """Let cameras send at these rates; return the frames a second that were answered once they had settled."""
    chance = random.Random(site.seed)
    clock = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        cameras = [group.create_task(site.nodes[name].camera(rate, chance)) for name, rate in rates.items()]
        await asyncio.sleep(warm_s)
        site.forget()
        began = clock.time()
        await asyncio.sleep(seconds)
        total = sum(site.answered.values()) / (clock.time() - began)
        for camera in cameras:
            camera.cancel()
    return total


def fair(site: Site) -> dict[str, float]:
    """Return each worker's part of the sum of capacities."""
    return {name: 1 / node.thread.service_s / site.capacity for name, node in site.nodes.items()}
