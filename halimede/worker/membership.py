"""Tracks the workers of a service: who is online, what each can take, and which has been there longest.

Every worker says so of itself on a retained topic that its will clears, and hears all others. From that alone each
comes to the same view of who decides and who goes on with the frames of one that has died: nobody is elected. A view
may be behind for a moment; whatever two workers do because of that has to be harmless.
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

#: seconds that a worker listens before it takes its rank
LISTEN_S = 0.5
#: seconds without a connection after which a worker comes anew: others have decided meanwhile what it does not know
MISSED_S = 2.0
#: whatever others claim
LAST_RANK = 2**31
#: seconds between two looks at who has fallen silent
LOOK_S = 1.0
#: a worker, what it says of itself (None: it is gone), and whether it left in order
Hook = Callable[[str, Peer | None, bool], None]


def peer_will(topic: Topic[Peer], namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a worker's connection: what it said of itself vanishes with it."""
    address = topic.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


@dataclass(slots=True)
class _Entry:
    peer: Peer
    seen: float


class Membership:
    """The workers of one service as one of them sees them, itself included. ``start``, then ``run``, then ``withdraw``.

    ``topic``: where the workers of that kind of service publish what they can take.

    Attributes:
        share: what this worker can take of others' frames, None: nothing.
        join: what it can take of their findings, None: findings do not come together here.
        holds: client ids of dead workers' connections for frames with which it goes on.
        rank: one more than the highest that it saw when it came; 0 before that. It comes anew after a long absence.

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
        #: since when it may have missed what others say; whether it is to take another rank
        self._deaf: float | None = None
        self._anew = False
        self._met, self._news = asyncio.Event(), asyncio.Event()
        self._left = False
        self._peers = topic.filter(ns=namespace, service=service)
        address = topic.at(ns=namespace, service=service, worker=worker)
        self._publisher = RetainedPublisher(bus, address, self._publish, farewell=self._farewell)

    @property
    def others(self) -> Mapping[str, Peer]:
        """All other workers that are there."""
        now = self._now()
        return {
            name: entry.peer
            for name, entry in self._known.items()
            if name != self.worker and not self._is_stale(entry, now)
        }

    @property
    def connected(self) -> bool:
        """Whether it would hear of others now."""
        return self._bus.connected

    def eldest(self) -> str | None:
        """Return the worker where findings come together: of those that can take them, the one longest there."""
        return self._first(lambda peer: peer.join is not None, own=self.join is not None)

    def heir(self) -> str | None:
        """Return the worker that goes on with the frames of those that have died."""
        return self._first(lambda peer: bool(peer.intake), own=bool(self.intake))

    def on_change(self, hook: Hook) -> None:
        """Call ``hook`` for each word of a worker, this one included, and when one is gone."""
        self._hooks.append(hook)

    def touch(self) -> None:
        """Look again, soon, at what there is to say."""
        self._publisher.touch()

    async def start(self) -> None:
        """Listen to the others, and take the rank behind them. Without a broker ``run`` does that once there is one."""
        self._looked = self._now()
        self._bus.on_connect(self._connected)
        await self._bus.subscribe(self._peers, self._on_peer, cleared=self._cleared)
        if self._bus.connected:
            await self._take_rank()
            await self._publisher.publish()

    async def run(self) -> None:
        """Say what changes, and notice who falls silent, until withdrawn or cancelled."""
        if not self.rank:
            await self._met.wait()
            await self._take_rank()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._drop_silent(), name="peers that fall silent")
            await self._publisher.run()
            looking.cancel()

    async def handed_back(self, timeout_s: float) -> bool:
        """Wait until nobody goes on with this worker's own session any more; return whether that is so in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self.intake in peer.holds for peer in self.others.values()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def withdraw(self, *, orderly: bool = True) -> None:
        """Say no more, and take back what was said; ``orderly``: whatever it had is answered."""
        self._orderly, self._left = orderly, True
        await self._publisher.withdraw()

    # --- what it says ---------------------------------------------------------------------------------------------

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

    # --- what it hears --------------------------------------------------------------------------------------------

    async def _on_peer(self, delivery: Delivery[Peer]) -> None:
        worker, peer = delivery.names["worker"], delivery.body
        if worker == self.worker and peer.life != self._life:
            return  # of an earlier life, or another process by our name: the connection knows what to do about that
        now = self._now()
        if worker not in self._known and len(self._known) >= MAX_WORKERS:
            return
        self._known[worker] = _Entry(peer, now)
        self._notify(worker, peer, orderly=False)

    async def _cleared(self, names: Mapping[str, str]) -> None:
        if names["worker"] == self.worker:
            await self._publisher.again()  # an old will that came late
        else:
            self._gone(names["worker"])

    async def _connected(self) -> None:
        self._met.set()
        deaf, self._deaf = self._deaf, None
        if self.rank and deaf is not None and self._now() - deaf > MISSED_S:
            log.info("member joined anew after an absence", worker=self.worker, rank=self.rank)
            self.rank, self._life, self._anew = 0, secrets.token_hex(4), True
        if self._anew:  # also if this is cancelled half-way, since the connection has ended again
            await self._take_rank()
            self._anew = False
            await self._publisher.publish()

    async def _drop_silent(self) -> None:
        """Take those for gone that have said nothing for long, but not because we did not listen."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._now()
            if not self._bus.connected and self._deaf is None:
                self._deaf = self._looked
            if not self._bus.connected or now - self._looked > 2 * LOOK_S:
                for entry in self._known.values():  # time for everybody to say again what we have missed
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

    # --- who comes first ------------------------------------------------------------------------------------------

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
