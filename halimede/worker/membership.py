"""Tracks the workers of a service: which are online, their capacity, and which joined first.

Each worker publishes its own state on a retained topic, which its will clears, and subscribes to those of the others.
From these states alone each worker derives who decides and who takes over the frames of a dead worker: there is no
election. Views may differ for a moment, so every action that depends on them must be harmless when two workers take it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from halimede.bus import Announcement, Bus, Delivery, Packet
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.messages import Load, Peer
from halimede.offload.load_balancer import MAX_WORKERS, STALE_S
from halimede.topic import Topic

log = structlog.get_logger()

#: seconds that a worker receives other states before it takes its rank
LISTEN_S = 0.5
#: seconds without a connection after which a worker joins again: others have decided without it meanwhile
MISSED_S = 2.0
#: limit of ranks: other workers may publish any number
LAST_RANK = 2**31
#: seconds between two checks for silent workers
LOOK_S = 1.0
#: called with a worker, its state (None: it left), and whether it left in order
Hook = Callable[[str, Peer | None, bool], None]


def peer_will(topic: Topic[Peer], namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a worker's connection: its will clears the worker's published state."""
    address = topic.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


@dataclass(slots=True)
class _Entry:
    peer: Peer
    seen: float


class Membership:
    """The workers of one service as one of them sees them, itself included. ``start``, ``run``, then ``withdraw``.

    ``topic``: where the workers of that kind of service publish their states.

    Attributes:
        share: this worker's capacity for frames of other workers, None: none.
        join: its capacity for findings of other workers, None: it does not run the joint.
        holds: client ids of dead workers' frame connections that it has taken over.
        rank: one more than the highest rank that it received when it joined; 0 before that. It joins again after a
            long absence.

    """

    def __init__(
        self,
        bus: Bus,
        topic: Topic[Peer],
        *,
        namespace: str,
        service: str,
        worker: str,
        node: str = "",
        intake: str = "",
    ) -> None:
        self.namespace, self.service, self.worker = namespace, service, worker
        self.intake = intake
        self.rank = 0
        self.share: Callable[[], Load] | None = None
        self.join: Callable[[], Load] | None = None
        self.holds: Callable[[], Sequence[str]] | None = None
        self._bus = bus
        self._node = node
        self._life = secrets.token_hex(4)
        self._orderly = False
        self._known: dict[str, _Entry] = {}
        self._hooks: list[Hook] = []
        self._looked = 0.0
        #: since when it may have missed states of others; whether it must take another rank
        self._deaf: float | None = None
        self._anew = False
        self._met, self._news = asyncio.Event(), asyncio.Event()
        self._left = False
        self._peers = topic.filter(ns=namespace, service=service)
        address = topic.at(ns=namespace, service=service, worker=worker)
        self._publisher = RetainedPublisher(bus, address, self._publish, farewell=self._farewell)

    @property
    def others(self) -> Mapping[str, Peer]:
        """All other workers that are online."""
        now = self._now()
        return {
            name: entry.peer
            for name, entry in self._known.items()
            if name != self.worker and not self._is_stale(entry, now)
        }

    @property
    def connected(self) -> bool:
        """Whether it receives the states of others now."""
        return self._bus.connected

    def eldest(self) -> str | None:
        """Return the worker that runs the joint: of those that can, the one that joined first."""
        return self._first(lambda peer: peer.join is not None, own=self.join is not None)

    def heir(self) -> str | None:
        """Return the worker that takes over the frames of dead workers."""
        return self._first(lambda peer: bool(peer.intake), own=bool(self.intake))

    def on_change(self, hook: Hook) -> None:
        """Call ``hook`` for each published state of a worker, this one included, and when a worker leaves."""
        self._hooks.append(hook)

    def touch(self) -> None:
        """Publish this worker's state soon if it has changed."""
        self._publisher.touch()

    async def start(self) -> None:
        """Receive the others' states, and take the next rank. Without a broker ``run`` does that after connecting."""
        self._looked = self._now()
        self._bus.on_connect(self._connected)
        await self._bus.subscribe(self._peers, self._on_peer, cleared=self._cleared)
        if self._bus.connected:
            await self._take_rank()
            await self._publisher.publish()

    async def run(self) -> None:
        """Publish changes, and remove silent workers, until withdrawn or cancelled."""
        if not self.rank:
            await self._met.wait()
            await self._take_rank()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._drop_silent(), name="peers that fall silent")
            await self._publisher.run()
            looking.cancel()

    async def handed_back(self, timeout_s: float) -> bool:
        """Wait until no other worker holds this worker's session; return whether that is so in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self.intake in peer.holds for peer in self.others.values()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def withdraw(self, *, orderly: bool = True) -> None:
        """Stop publishing, and clear the published state; ``orderly``: all its samples are answered."""
        self._orderly, self._left = orderly, True
        await self._publisher.withdraw()

    # --- published state -----------------------------------------------------------------------------------------

    def _publish(self) -> Peer | None:
        if not self.rank:
            return None
        return Peer(
            rank=self.rank,
            life=self._life,
            node=self._node,
            intake=self.intake,
            holds=list(self.holds()) if self.holds else [],
            share=self.share() if self.share else None,
            join=self.join() if self.join else None,
        )

    def _farewell(self) -> Peer:
        return Peer(rank=self.rank, life=self._life, node=self._node, intake=self.intake, leaving=self._orderly)

    async def _take_rank(self) -> None:
        await asyncio.sleep(LISTEN_S)
        self.rank = min(1 + max((peer.rank for peer in self.others.values()), default=0), LAST_RANK)

    # --- received states -----------------------------------------------------------------------------------------

    async def _on_peer(self, delivery: Delivery[Peer]) -> None:
        worker, peer = delivery.names["worker"], delivery.body
        if worker == self.worker and peer.life != self._life:
            return  # from an earlier life, or from another process of this name: the connection handles that
        now = self._now()
        if worker not in self._known and len(self._known) >= MAX_WORKERS:
            return
        self._known[worker] = _Entry(peer, now)
        self._notify(worker, peer, orderly=False)

    async def _cleared(self, names: Mapping[str, str]) -> None:
        if names["worker"] == self.worker:
            await self._publisher.again()  # a late will of an earlier connection cleared it
        else:
            self._gone(names["worker"])

    async def _connected(self) -> None:
        self._met.set()
        deaf, self._deaf = self._deaf, None
        if self.rank and deaf is not None and self._now() - deaf > MISSED_S:
            log.info("member joined again", worker=self.worker, rank=self.rank)
            self.rank, self._life, self._anew = 0, secrets.token_hex(4), True
        if self._anew:  # also if this is cancelled half-way because the connection has ended again
            await self._take_rank()
            self._anew = False
            await self._publisher.publish()

    async def _drop_silent(self) -> None:
        """Remove workers that have been silent for long, unless this worker could not receive."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._now()
            if not self._bus.connected and self._deaf is None:
                self._deaf = self._looked
            if not self._bus.connected or now - self._looked > 2 * LOOK_S:
                for entry in self._known.values():  # give all workers time to repeat what was missed
                    entry.seen = now
            self._looked = now
            for worker in [name for name, entry in self._known.items() if self._is_stale(entry, now)]:
                if worker != self.worker:
                    log.warning("peer timed out", peer=worker)
                    self._gone(worker)

    def _gone(self, worker: str) -> None:
        entry = self._known.pop(worker, None)
        if entry:
            self._notify(worker, None, orderly=entry.peer.leaving)

    def _notify(self, worker: str, peer: Peer | None, *, orderly: bool) -> None:
        self._news.set()
        for hook in self._hooks:
            hook(worker, peer, orderly)

    # --- order of workers ----------------------------------------------------------------------------------------

    def _first(self, fits: Callable[[Peer], bool], *, own: bool) -> str | None:
        now = self._now()
        able = [
            (entry.peer.rank, name)
            for name, entry in self._known.items()
            if name != self.worker and fits(entry.peer) and not entry.peer.leaving and not self._is_stale(entry, now)
        ]
        if own and self.rank and not self._left:
            able.append((self.rank, self.worker))
        return min(able)[1] if able else None

    def _is_stale(self, entry: _Entry, now: float) -> bool:
        return now - entry.seen > STALE_S

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
