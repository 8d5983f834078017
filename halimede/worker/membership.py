"""Tracks the workers of a service: which are online, their capacity, and which joined first.

Each worker publishes its own state on a retained topic, and the broker clears it (MQTT's will) when the process of the
worker ends. From the states of all workers, each one derives who runs the joint and who takes over the frames of a dead
worker: there is no election. Workers may see different states for a moment, so an action that depends on them must be
harmless if two workers take it.
"""

from __future__ import annotations

import asyncio
import contextlib
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

#: seconds for which a worker receives the states of others before it takes its rank
RANK_DELAY_S = 0.5
#: seconds without a connection after which a worker takes another rank: the others have decided without it meanwhile
REJOIN_AFTER_S = 2.0
#: limit of ranks: other workers may publish any number
MAX_RANK = 2**31
#: seconds between two checks for silent workers
CHECK_PERIOD_S = 1.0
#: called with a worker, its state (None: it has ended), and whether it ended after it had answered all its frames
Hook = Callable[[str, Peer | None, bool], None]


def peer_will(topic: Topic[Peer], namespace: str, service: str, worker: str) -> Announcement:
    """Return what a worker's connection announces: a will, with which the broker clears the worker's state."""
    address = topic.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


@dataclass(slots=True)
class _Entry:
    """A worker's last state, and when it was received (loop time)."""

    peer: Peer
    received_at: float


class Membership:
    """The workers of one service as one of them sees them, itself included. Call ``start``, ``run``, then ``withdraw``.

    Args:
        bus: the worker's connection.
        topic: where the workers of this kind of service publish their states.
        namespace: of the service.
        service: its name.
        worker: this worker.
        node: its node.
        intake: name of this worker's session for frames; empty: it has none.

    Attributes:
        intake: name of this worker's session for frames, which another worker may take over; empty: it has none.
        rank: one more than the highest rank of the others when it joined; 0 before that. The lowest rank is the
            eldest worker. After a long absence it takes another rank.
        share: returns its capacity for frames of other workers; None: it accepts none.
        join: returns its capacity for findings of other workers; None: it does not run the joint.
        holds: returns the names of the sessions that it has taken over, of dead workers and its own earlier processes;
            None: it takes none over.

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
        self._entries: dict[str, _Entry] = {}
        self._hooks: list[Hook] = []
        self._checked_at = 0.0
        #: loop time since which it may have missed states of others; None: it has not
        self._disconnected_since: float | None = None
        #: it must take another rank
        self._must_rejoin = False
        self._was_connected, self._states_changed = asyncio.Event(), asyncio.Event()
        self._has_withdrawn = False
        self._peers = topic.filter(ns=namespace, service=service)
        address = topic.at(ns=namespace, service=service, worker=worker)
        self._publisher = RetainedPublisher(bus, address, self._publish, farewell=self._last_state)

    @property
    def others(self) -> Mapping[str, Peer]:
        """The states of all other workers that are online, by their names."""
        now = self._now()
        return {
            name: entry.peer
            for name, entry in self._entries.items()
            if name != self.worker and not self._is_stale(entry, now)
        }

    @property
    def connected(self) -> bool:
        """Whether this worker receives the states of others now."""
        return self._bus.connected

    def eldest(self) -> str | None:
        """Return the worker whose joint decides: of those with a joint, the one that joined first; None without one."""
        return self._first_in_rank(lambda peer: peer.join is not None, own=self.join is not None)

    def heir(self) -> str | None:
        """Return the worker that takes over the frames of dead workers: the eldest with a session for frames.

        None if there is none.
        """
        return self._first_in_rank(lambda peer: bool(peer.intake), own=bool(self.intake))

    def leader(self) -> str | None:
        """Return the worker that does what only one worker of the service may do: the eldest; None if there is none."""
        return self._first_in_rank(lambda _: True, own=True)

    def on_change(self, hook: Hook) -> None:
        """Call ``hook`` for each received state of a worker, this one included, and when a worker has ended."""
        self._hooks.append(hook)

    def touch(self) -> None:
        """Publish this worker's state soon if it has changed."""
        self._publisher.touch()

    async def start(self) -> None:
        """Receive the others' states, take the next rank, which takes RANK_DELAY_S, and publish this worker's state.

        Without a connection this only subscribes, and ``run`` does the rest later. Raises RefusedError if the broker
        does not grant the subscription.
        """
        self._checked_at = self._now()
        self._bus.on_connect(self._on_connected)
        await self._bus.subscribe(self._peers, self._on_peer, cleared=self._on_cleared)
        if self._bus.connected:
            await self._take_rank()
            await self._publisher.publish()

    async def run(self) -> None:
        """Publish changes, and remove silent workers, until withdrawn or cancelled."""
        if not self.rank:
            await self._was_connected.wait()
            await self._take_rank()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._drop_silent(), name="peers that fall silent")
            await self._publisher.run()
            watching.cancel()

    async def wait_handed_back(self, timeout_s: float) -> None:
        """Wait until no other worker serves this worker's session, at most ``timeout_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(self.intake in peer.holds for peer in self.others.values()):
                    self._states_changed.clear()
                    await self._states_changed.wait()

    async def withdraw(self, *, orderly: bool = True) -> None:
        """Publish a last state that says ``orderly``, clear the published state, and stop publishing.

        ``orderly``: whether all frames of this worker are answered.
        """
        self._orderly, self._has_withdrawn = orderly, True
        await self._publisher.withdraw()

    # --- published state -----------------------------------------------------------------------------------------

    def _publish(self) -> Peer | None:
        """Return this worker's state to publish; None before it has a rank."""
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

    def _last_state(self) -> Peer:
        """Return the state to publish before the state is cleared: it shows whether all frames are answered."""
        return Peer(rank=self.rank, life=self._life, node=self._node, intake=self.intake, leaving=self._orderly)

    async def _take_rank(self) -> None:
        """Wait for the states of others, and take a rank after all of theirs."""
        await asyncio.sleep(RANK_DELAY_S)
        self.rank = min(1 + max((peer.rank for peer in self.others.values()), default=0), MAX_RANK)

    # --- received states -----------------------------------------------------------------------------------------

    async def _on_peer(self, delivery: Delivery[Peer]) -> None:
        """Record the state of a worker."""
        worker, peer = delivery.names["worker"], delivery.body
        if worker == self.worker and peer.life != self._life:
            return  # of an earlier life, or of a second process of this name: the connection resolves that conflict
        if worker not in self._entries and len(self._entries) >= MAX_WORKERS:
            return
        self._entries[worker] = _Entry(peer, self._now())
        self._notify(worker, peer, orderly=False)

    async def _on_cleared(self, names: Mapping[str, str]) -> None:
        """Record that a worker's state was cleared: it has ended."""
        if names["worker"] == self.worker:
            await self._publisher.republish()  # a late will of an earlier connection cleared it
        else:
            self._remove(names["worker"])

    async def _on_connected(self) -> None:
        """Take another rank after a connection that follows a long absence."""
        self._was_connected.set()
        disconnected_since, self._disconnected_since = self._disconnected_since, None
        if self.rank and disconnected_since is not None and self._now() - disconnected_since > REJOIN_AFTER_S:
            log.info("member joined again", worker=self.worker, rank=self.rank)
            self.rank, self._life, self._must_rejoin = 0, secrets.token_hex(4), True
        if self._must_rejoin:  # it stays set if the connection ends again and this is cancelled half-way
            await self._take_rank()
            self._must_rejoin = False
            await self._publisher.publish()

    async def _drop_silent(self) -> None:
        """Remove workers that have been silent for STALE_S, until cancelled; not while this worker cannot receive."""
        while True:
            await asyncio.sleep(CHECK_PERIOD_S)
            now = self._now()
            if not self._bus.connected and self._disconnected_since is None:
                self._disconnected_since = self._checked_at
            if not self._bus.connected or now - self._checked_at > 2 * CHECK_PERIOD_S:
                for entry in self._entries.values():  # give all workers time to repeat what was missed
                    entry.received_at = now
            self._checked_at = now
            for worker in [name for name, entry in self._entries.items() if self._is_stale(entry, now)]:
                if worker != self.worker:
                    log.warning("peer timed out", peer=worker)
                    self._remove(worker)

    def _remove(self, worker: str) -> None:
        """Remove a worker that has ended."""
        entry = self._entries.pop(worker, None)
        if entry:
            self._notify(worker, None, orderly=entry.peer.leaving)

    def _notify(self, worker: str, peer: Peer | None, *, orderly: bool) -> None:
        """Call all hooks."""
        self._states_changed.set()
        for hook in self._hooks:
            hook(worker, peer, orderly)

    # --- order of workers ----------------------------------------------------------------------------------------

    def _first_in_rank(self, is_able: Callable[[Peer], bool], *, own: bool) -> str | None:
        """Return the eldest worker that is able; None without one. ``own``: this worker is able."""
        candidates = [(peer.rank, name) for name, peer in self.others.items() if is_able(peer) and not peer.leaving]
        if own and self.rank and not self._has_withdrawn:
            candidates.append((self.rank, self.worker))
        return min(candidates)[1] if candidates else None

    def _is_stale(self, entry: _Entry, now: float) -> bool:
        """Whether a worker's last state is too old at loop time ``now``."""
        return now - entry.received_at > STALE_S

    def _now(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()
