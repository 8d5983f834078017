"""Fails over the MQTT sessions of dead workers: another worker answers their frames.

The broker keeps a member's frames until they are answered. When the member dies, the heir (``Membership.heir``)
connects with the client id of its session (``session_names``): the broker sends the unanswered frames, then all that
have arrived since, and continues to send new ones. When the owner returns, or another worker is the heir, the heir
closes the connection and keeps the session. If another worker now has the owner's cameras, or the owner returned for
other cameras, the frames of the session are answered and the session ends. All workers know all sessions without an
owner (``Peer.holds``), so that a session outlives the heir as well.

A worker that has other cameras, or another session key, than its earlier process ends the session of that process
itself: no other worker may know that key.

Each action depends only on the current state of the peers, not on earlier ones. Two workers that both consider
themselves the heir take the session from one another a few times at most; frames may then be answered twice, under one
id.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import structlog
from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.bus import Bus
from halimede.errors import DisconnectedError, InvalidFieldError
from halimede.messages import Peer
from halimede.names import check_name
from halimede.observe.metrics import counter, gauge
from halimede.worker.frame_backlog import FrameBacklog
from halimede.worker.membership import Membership
from halimede.worker.roles import BusFactory, WorkerContext, drain, source_of, unless
from halimede.worker.session_names import SessionJournal, is_keyed, session_client_id, session_name
from halimede.worker.settings import WorkerSettings
from halimede.worker.sources.base import FrameSink, FrameSource
from halimede.worker.sources.camera_topics import QUEUE, FrameHandler
from halimede.worker.sources.poison_journal import PoisonJournal
from halimede.worker.sources.turning_sink import TurningSink
from halimede.worker.status_reporter import MODEL_TOO_SLOW, SESSION_LOST

log = structlog.get_logger()

#: seconds for which a lost connection may be only an interruption
PATIENCE_S = 0.5
#: seconds to connect; seconds that an owner, or the next heir, grants to finish frames in progress
CONNECT_S, FINISH_S = 5.0, 1.5
#: seconds to answer the frames of a session that is no longer needed; after that it is tried again
END_S = 30.0
#: seconds until a session that another worker took is taken again, if this worker is still the heir
RETRY_S = (4.0, 8.0)
#: seconds in which the broker sends queued frames before the session is ended
ARRIVE_S = 0.5
#: most sessions without an owner that are remembered: their names come from the bus
MOST = 64
#: seconds for which the broker keeps a worker's frames after its connection ended
SESSION_S = 60
#: seconds that a returning worker waits until the heir has finished its frames in progress
HAND_BACK_S = 2.0
#: seconds for which a worker's status shows that the broker had lost its session
LOST_SHOWN_S = 30.0
NO_KEY_FIX = "update the global manager and the local controller"
#: a worker without sessions of an earlier process
NO_SESSIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class _Orphan:
    """A session without an owner. ``due``: when to take it over, in loop time.

    ``own``: of an earlier process of this worker, which ends it whoever is the heir.
    """

    due: float
    held: bool = False
    own: bool = False
    #: set when another worker takes over, or when none does because another worker has its cameras
    release: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Event = field(default_factory=asyncio.Event)


class FailoverSource:
    """A worker's frame source, with the failover of dead workers' frames. ``start``, then ``leave``.

    The broker keeps camera frames until they are answered, and redelivered frames are checked for poison.

    Args:
        group: its workers share the frames of a camera.
        cameras: of the service; those of received frames are added.
        receive_maximum: most frames in flight to this worker: each stays with the broker until its answer. With
            ``maxAgeMs`` it grows by the queues of the cameras: a frame that waits at the broker has no known age.
        durable: whether frames outlive the connection; otherwise no worker takes them over.
        camera: see ``SourceContext``.

    """

    def __init__(
        self,
        parts: WorkerContext,
        peers: Membership,
        *,
        group: str,
        cameras: Sequence[str],
        receive_maximum: int,
        durable: bool = True,
        camera: str = "",
    ) -> None:
        self._parts = parts
        self._peers = peers
        self._group = group
        self._cameras = cameras
        source = parts.settings.source
        waiting = 0 if source.max_age_ms is None else (QUEUE + 1) * len(source.cameras)
        self._receive_maximum = receive_maximum + waiting
        self._durable = durable
        self._camera = camera
        self._suspects = PoisonJournal(parts.settings.state)
        self._sessions = SessionJournal(parts.settings.state if durable else None)
        self._session = OwnSession(parts, peers)
        self._bus: Bus | None = None
        self._source: FrameSource
        self._taking: asyncio.Task[None]
        self._joined: asyncio.Task[None]

    async def start(self, intake: FrameSink, tasks: asyncio.TaskGroup) -> None:
        """Join the other workers and start the source; return once the broker sends frames, or at the stop."""
        parts, peers = self._parts, self._peers
        if parts.settings.source.orientation == "exif":
            intake = TurningSink(intake)
        await peers.start()
        self._joined = tasks.create_task(peers.run(), name="peers")
        await peers.handed_back(HAND_BACK_S)
        self._suspects.open()
        earlier = self._open_sessions() if self._durable else NO_SESSIONS
        self._source = source_of(
            parts, self._connect, group=self._group, durable=self._durable, camera=self._camera, suspects=self._suspects
        )
        self._taking = tasks.create_task(self._source.run(intake, parts.stop), name="source")
        failover = SessionFailover(
            peers,
            parts.connect,
            intake,
            group=self._group,
            cameras=self._cameras,
            receive_maximum=self._receive_maximum,
            suspects=self._suspects,
            key=parts.settings.session_key,
            earlier=earlier,
            ended=self._sessions.remove,
        )
        if self._durable:
            tasks.create_task(failover.run(parts.stop), name="takeover")
            parts.reporter.troubles.append((SESSION_LOST, self._session.trouble))
        parts.metrics.more.append(lambda: self._metrics(failover))
        await unless(parts.stop, self._source.ready())

    async def leave(self, grace_s: float, answer: Callable[[float], Awaitable[bool]]) -> None:
        """Stop the source, answer pending frames within the grace period, and leave the other workers."""
        await drain(grace_s, self._taking, answer)
        orderly = self._taking.done() and not self._source.unfinished
        if orderly:
            self._sessions.remove(intake_id(self._parts.settings))
        await self._peers.withdraw(orderly=orderly)
        self._suspects.close()
        for task in (self._taking, self._joined):
            task.cancel()

    def _open_sessions(self) -> Mapping[str, str]:
        """Record this worker's session; return those that earlier processes have left."""
        settings = self._parts.settings
        name = intake_id(settings) if settings.source.cameras else ""
        if name and not settings.session_key:
            log.warning("session key missing: the client id of the session can be computed", fix=NO_KEY_FIX)
        former = intake_id(replace(settings, session_key="")) if name and settings.session_key else ""
        self._sessions.open(first=former)
        earlier = {known: id_ for known, id_ in self._sessions.sessions.items() if known != name}
        self._session.expected = name in self._sessions.sessions
        if name:
            self._sessions.add(name, session_client_id(name, settings.session_key))
        return earlier

    def _connect(self) -> Bus:
        settings = self._parts.settings
        session_s = SESSION_S if self._durable else 0
        bus = self._parts.connect(intake_id(settings), receive_maximum=self._receive_maximum, session_s=session_s)
        bus.session_id = session_client_id(bus.client_id, settings.session_key)
        self._bus = bus
        if settings.source.max_age_ms is None:
            self._parts.reporter.troubles.append((MODEL_TOO_SLOW, FrameBacklog(bus, self._receive_maximum).trouble))
        if self._durable:
            bus.on_connect(partial(self._session.check, bus))
        return bus

    def _metrics(self, failover: SessionFailover) -> Iterator[Metric]:
        yield gauge("worker_peer_workers", "Other workers of the service that are online.", len(self._peers.others))
        yield counter(
            "worker_overtaken_frames", "Frames taken over from failed workers of the service.", failover.taken_over
        )
        if self._bus:
            text = "Camera frames that this worker has received and not answered."
            yield gauge("worker_unacknowledged_frames", text, self._bus.unacknowledged)
            text = "Seconds since the arrival of the oldest camera frame without an answer."
            yield gauge("worker_oldest_frame_seconds", text, self._bus.oldest_s)
        text = "Sessions that the broker no longer had when the worker came back: their frames may be lost."
        yield counter("worker_lost_sessions", text, self._session.lost)


class OwnSession:
    """Checks at each connection that the broker still has the session of this worker's frames.

    Attributes:
        expected: whether the broker should have it, because an earlier connection has left it.
        lost: how often it did not.

    """

    def __init__(self, parts: WorkerContext, peers: Membership) -> None:
        self.expected = False
        self.lost = 0
        self._parts = parts
        self._peers = peers
        self._lost_at = float("-inf")
        #: connections of the worker's other bus when the session was last there
        self._connects = 0

    async def check(self, bus: Bus) -> None:
        """Check a new connection. A worker that was away for its peers may have an heir, who answers and ends it."""
        connects = self._parts.bus.stats.connects
        has_heir = connects != self._connects and bool(self._peers.others)
        if self.expected and not bus.resumed and not has_heir:
            self.lost += 1
            self._lost_at = asyncio.get_running_loop().time()
            log.warning("session lost: frames that the broker had accepted may be lost", session=bus.client_id)
        self.expected, self._connects = True, connects

    def trouble(self) -> str:
        """Return that the session was lost a short time ago, empty otherwise."""
        if asyncio.get_running_loop().time() - self._lost_at > LOST_SHOWN_S:
            return ""
        return "the broker had lost the session of this worker: frames that it had accepted may be lost"


class SessionFailover:
    """Answers the frames of dead members, in ``run``, while this worker is the heir."""

    def __init__(
        self,
        peers: Membership,
        connect: BusFactory,
        intake: FrameSink,
        *,
        group: str,
        cameras: Sequence[str] = (),
        receive_maximum: int = 16,
        session_s: int = SESSION_S,
        suspects: PoisonJournal | None = None,
        key: str = "",
        earlier: Mapping[str, str] = NO_SESSIONS,
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare. ``group`` shares the frames of a camera; ``cameras``: initial ones of the service.

        ``key``: of the service's sessions. ``earlier``: sessions of this worker's earlier processes with their client
        ids. It ends them, and calls ``ended`` with each name.
        """
        self._peers = peers
        self._connect = connect
        self._intake = intake
        self._group = group
        self._cameras = frozenset(cameras)
        self._receive_maximum = receive_maximum
        self._session_s = session_s
        self._suspects = suspects
        self._key = key
        self._earlier = earlier
        self._ended = ended
        self._prefix = f"intake.{peers.namespace}."
        self._orphans: dict[str, _Orphan] = {}
        self._last: dict[str, Peer] = {}
        self._changed = asyncio.Event()
        self._before = 0
        self._handings: dict[str, FrameHandler] = {}

    @property
    def taken_over(self) -> int:
        """Frames of dead workers that this worker took over so far."""
        return self._before + sum(handing.taken for handing in self._handings.values())

    def holds(self) -> list[str]:
        """Return the client ids of the sessions that this worker has taken over."""
        return [name for name, orphan in self._orphans.items() if orphan.held]

    async def run(self, stop: asyncio.Event) -> None:
        """Take over sessions until ``stop``; then finish frames in progress and leave the rest to the next heir."""
        self._peers.holds = self.holds
        self._orphans |= {name: _Orphan(self._now(), own=True) for name in self._earlier}
        self._review()
        self._peers.on_change(self.changed)
        for worker, peer in self._peers.others.items():
            self.changed(worker, peer, orderly=False)
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stopped(stop), name="takeover stopped")
            while not stop.is_set():
                self._changed.clear()
                for name in self._due():
                    orphan = self._orphans[name]
                    orphan.held = True
                    orphan.release.clear()
                    group.create_task(self._hold(name, orphan), name=f"session {name}")
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._changed.wait()
                except TimeoutError:
                    continue
            stopping.cancel()
            for orphan in self._orphans.values():
                orphan.release.set()

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Record the state of a worker; None: it left, in order or not."""
        if worker == self._peers.worker:
            return
        if peer is None:
            last = self._last.pop(worker, None)
            if last and last.intake.startswith(f"{self._prefix}{worker}") and not orderly:
                self._orphaned(last.intake)
        else:
            if not peer.leaving:
                self._last[worker] = peer
            for name in peer.holds:
                self._orphaned(name)
        self._review()

    # --- decisions ------------------------------------------------------------------------------------------------

    def _orphaned(self, name: str) -> None:
        """Record a session without an owner, unless it has one or its name is invalid: names come from the bus."""
        known = name in self._orphans or name in self._present() or (is_keyed(name) and not self._key)
        if known or not name.startswith(self._prefix) or len(self._orphans) >= MOST:
            return
        with contextlib.suppress(InvalidFieldError):
            self._orphans[check_name("client id", name)] = _Orphan(self._now() + PATIENCE_S)

    def _review(self) -> None:
        """Release sessions that now belong to another worker; sessions to take over are checked next."""
        present = self._present()
        ours = self._ours()
        for name, orphan in list(self._orphans.items()):
            if name in present and not orphan.held:
                del self._orphans[name]
            elif name in present or (ours is False and not orphan.own):
                orphan.release.set()
            elif orphan.own or _replaced(name, present):
                orphan.end.set()
            else:
                orphan.end.clear()
        self._changed.set()

    def _present(self) -> set[str]:
        """Return the sessions whose owners are online."""
        return {self._peers.intake, *(peer.intake for peer in self._last.values())}

    def _ours(self) -> bool | None:
        """Whether this worker is the heir; None: it is not connected, and cannot know."""
        return self._peers.heir() == self._peers.worker if self._peers.connected else None

    def _due(self) -> list[str]:
        now = self._now()
        return [name for name in self._waiting() if self._orphans[name].due <= now]

    def _waiting(self) -> list[str]:
        """Return the sessions that this worker has to take over, now or later."""
        ours = self._ours()
        held = {name for peer in self._last.values() for name in peer.holds}
        return [
            name
            for name, orphan in self._orphans.items()
            if not orphan.held and (name not in held if orphan.own else ours)
        ]

    def _pause(self) -> float | None:
        """Return the seconds until the next session is due."""
        due = [self._orphans[name].due for name in self._waiting()]
        return max(min(due) - self._now(), 0.01) if due else None

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _stopped(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    # --- one session ----------------------------------------------------------------------------------------------

    async def _hold(self, name: str, orphan: _Orphan) -> None:
        """Serve a session until another worker does."""
        self._peers.touch()
        handing = self._handings[name] = FrameHandler(self._intake, later=True, suspects=self._suspects)
        bus = self._connect(name, receive_maximum=self._receive_maximum, session_s=self._session_s)
        bus.session_id = self._earlier.get(name) or session_client_id(name, self._key)
        bus.once = True
        over = False
        try:
            async with bus:
                over = await self._serve(bus, handing, orphan)
        finally:
            del self._handings[name]
            self._before += handing.taken
            orphan.held = False
            if over and orphan.own:
                self._ended(name)
            if over or name in self._present():
                del self._orphans[name]
            # another worker took it, or there is no broker: wait, or two workers would take it from each other
            orphan.due = self._now() + (0.0 if orphan.release.is_set() else random.uniform(*RETRY_S))  # noqa: S311
            self._peers.touch()
            self._changed.set()
            log.info("session released", session=name, frames=handing.taken, over=over)

    async def _serve(self, bus: Bus, handing: FrameHandler, orphan: _Orphan) -> bool:
        """Take frames until another worker does; return whether the session has ended."""
        frames = topics.CAMERA_FRAME.filter(ns=self._peers.namespace)
        await bus.subscribe(frames, handing, later=True, inherit=True)
        try:
            await bus.wait_connected(CONNECT_S)
        except DisconnectedError as error:
            log.info("session not taken over", session=bus.client_id, error=str(error))
            return False
        if bus.resumed:
            whose = "an earlier process" if orphan.own else "another worker"
            log.warning(f"session of {whose} resumed", session=bus.client_id)
            await _first(orphan.release.wait(), orphan.end.wait(), bus.over.wait())
        if orphan.end.is_set() or not bus.resumed:
            return await self._end(bus, handing, orphan)
        handing.close()
        await _within(FINISH_S, handing.idle())
        return False

    async def _end(self, bus: Bus, handing: FrameHandler, orphan: _Orphan) -> bool:
        """Answer the remaining frames of a session, and end it; return whether this finished before its release."""
        await asyncio.sleep(ARRIVE_S if bus.resumed else 0)
        names = {"ns": self._peers.namespace, "group": self._group}
        filters = [topics.CAMERA_FRAME.filter(camera=camera, **names) for camera in self._cameras | handing.cameras]
        for filter_ in filters:
            await bus.subscribe(filter_, handing, later=True, inherit=True)
        filters.append(topics.CAMERA_FRAME.filter(ns=self._peers.namespace))
        ended = asyncio.gather(*(bus.unsubscribe(filter_) for filter_ in filters))
        await _first(_within(END_S, ended), bus.over.wait(), orphan.release.wait())
        return ended.done() and not ended.cancelled()


def intake_id(settings: WorkerSettings) -> str:
    """Return the name of a worker's session for frames.

    It differs for other cameras, because a session keeps the subscriptions of its earlier connections.
    """
    return session_name(settings.client_id("intake"), settings.source.cameras, settings.uid, settings.session_key)


def _replaced(name: str, present: set[str]) -> bool:
    """Whether another session has its cameras, or its worker has another session (see ``session_id``)."""
    worker, _, cameras = name.rpartition(".")
    others = [other.rpartition(".") for other in present if other and other != name]
    return any(worker == other[0] or cameras == other[2] for other in others)


async def _within(seconds: float, work: Awaitable[object]) -> None:
    """Wait for ``work``, at most ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def _first(*waits: Awaitable[object]) -> None:
    """Wait until one of ``waits`` ends."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
