"""Fails over the MQTT sessions of dead workers: another worker answers their frames.

A session is what the broker keeps for a client between two connections: here a worker's frames until they are answered.
When the worker (the owner) dies, the heir, the eldest other worker, connects with the client id of the session. The
broker then sends the unanswered frames, and all new ones. When the owner returns, or another worker becomes the heir,
the heir closes the connection and leaves the session. If another worker now has the owner's cameras, or the owner has
returned for other cameras, the frames of the session are answered and the session is ended. Workers publish which
sessions they have taken over (``Peer.holds``), so a session survives the end of the heir as well.

A worker that has other cameras, or another session key, than its earlier process ends the session of that process
itself, because no other worker may know the old key.

Each action depends only on the current state of the peers. If two workers both consider themselves the heir for a
moment, they take the session from each other a few times at most; frames may then be answered twice, under one id.
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
from halimede.worker.roles import BusFactory, WorkerContext, drain, source_of, wait_unless_stopped
from halimede.worker.session_names import SessionJournal, is_keyed, session_client_id, session_name
from halimede.worker.settings import WorkerSettings
from halimede.worker.sources.base import FrameSink, FrameSource
from halimede.worker.sources.camera_topics import QUEUE, FrameHandler
from halimede.worker.sources.poison_journal import PoisonJournal
from halimede.worker.sources.turning_sink import TurningSink
from halimede.worker.status_reporter import MODEL_TOO_SLOW, SESSION_LOST

log = structlog.get_logger()

#: seconds for which a lost connection may be only an interruption
RECONNECT_GRACE_S = 0.5
#: seconds to connect
CONNECT_S = 5.0
#: seconds in which the heir finishes frames in progress before it leaves a session
FINISH_S = 1.5
#: seconds to answer the frames of a session that is no longer needed; after that it is tried again
END_SESSION_S = 30.0
#: least and most seconds (a random number) until a session that another worker took is taken again, if this worker is
#: still the heir
RETRY_S = (4.0, 8.0)
#: seconds in which the broker sends queued frames before the session is ended
ARRIVAL_S = 0.5
#: most sessions without an owner that are remembered: their names come from the bus
MAX_ORPHANS = 64
#: seconds for which the broker keeps a worker's frames after its connection ended
SESSION_S = 60
#: seconds that a returning worker waits until the heir has finished its frames in progress
HAND_BACK_S = 2.0
#: seconds for which a worker's report shows that the broker had lost its session
LOST_SHOWN_S = 30.0
#: what to do if GM sends no session key
NO_KEY_FIX = "update the global manager and the local controller"
#: a worker without sessions of an earlier process
NO_SESSIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class _Orphan:
    """A session without an owner.

    Attributes:
        due: when to take it over, in loop time.
        is_served: this worker has taken it over.
        own: it is of an earlier process of this worker, which ends it whichever worker is the heir.
        release: is set when this worker must leave it to another one.
        end: is set when no worker needs it any more; then its frames are answered, and the session is ended.

    """

    due: float
    is_served: bool = False
    own: bool = False
    release: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Event = field(default_factory=asyncio.Event)


class FailoverSource:
    """A worker's frame source, with the failover of dead workers' frames. Call ``start``, then ``leave``.

    Redelivered frames are checked: a frame on which workers have crashed is refused.

    Args:
        context: the worker's parts.
        peers: the workers of the service, not started yet.
        group: the workers of a group share the frames of a camera.
        cameras: those of the service; the cameras of received frames are added.
        receive_maximum: most frames in flight to this worker: each stays with the broker until its answer. With
            ``maxAgeMs`` it grows by the queues of the cameras: a frame that waits at the broker has no known age.
        durable: the broker keeps frames when the connection ends; otherwise no worker takes them over.
        camera: name of the one camera of a folder or a URL; empty: derived from its path.

    """

    def __init__(
        self,
        context: WorkerContext,
        peers: Membership,
        *,
        group: str,
        cameras: Sequence[str],
        receive_maximum: int,
        durable: bool = True,
        camera: str = "",
    ) -> None:
        self._context = context
        self._peers = peers
        self._group = group
        self._cameras = cameras
        source = context.settings.source
        # of each camera a queue of frames, and the one that is offered to the intake
        waiting = 0 if source.max_age_ms is None else (QUEUE + 1) * len(source.cameras)
        self._receive_maximum = receive_maximum + waiting
        self._durable = durable
        self._camera = camera
        self._suspects = PoisonJournal(context.settings.state)
        self._sessions = SessionJournal(context.settings.state if durable else None)
        self._session = OwnSession(context, peers)
        self._bus: Bus | None = None
        self._source: FrameSource
        self._source_task: asyncio.Task[None]
        self._peer_task: asyncio.Task[None]

    async def start(self, intake: FrameSink, tasks: asyncio.TaskGroup) -> None:
        """Join the other workers and start the source in ``tasks``, which offers frames to ``intake``.

        Returns once frames can arrive, or when the worker must stop. Raises InvalidFieldError for the source's spec.
        """
        context, peers, durable = self._context, self._peers, self._durable
        if context.settings.source.orientation == "exif":
            intake = TurningSink(intake)
        await peers.start()
        self._peer_task = tasks.create_task(peers.run(), name="peers")
        await peers.wait_handed_back(HAND_BACK_S)
        self._suspects.open()
        earlier = self._open_sessions() if durable else NO_SESSIONS
        self._source = source_of(
            context, self._connect, group=self._group, durable=durable, camera=self._camera, suspects=self._suspects
        )
        self._source_task = tasks.create_task(self._source.run(intake, context.stop), name="source")
        failover = SessionFailover(
            peers,
            context.connect,
            intake,
            group=self._group,
            cameras=self._cameras,
            receive_maximum=self._receive_maximum,
            suspects=self._suspects,
            key=context.settings.session_key,
            earlier=earlier,
            ended=self._sessions.remove,
        )
        if durable:
            tasks.create_task(failover.run(context.stop), name="takeover")
            context.reporter.troubles.append((SESSION_LOST, self._session.trouble))
        context.metrics.collectors.append(lambda: self._metrics(failover))
        await wait_unless_stopped(context.stop, self._source.ready())

    async def leave(self, grace_s: float, answer: Callable[[float], Awaitable[bool]]) -> None:
        """Wait for the source's end, answer pending frames, and leave the peers. Arguments are those of ``drain``."""
        await drain(grace_s, self._source_task, answer)
        orderly = self._source_task.done() and not self._source.unfinished
        if orderly:
            self._sessions.remove(intake_id(self._context.settings))
        await self._peers.withdraw(orderly=orderly)
        self._suspects.close()
        for task in (self._source_task, self._peer_task):
            task.cancel()

    def _open_sessions(self) -> Mapping[str, str]:
        """Record this worker's session; return the sessions that earlier processes have left, with their client ids."""
        settings = self._context.settings
        name = intake_id(settings) if settings.source.cameras else ""
        if name and not settings.session_key:
            log.warning("session key missing: the client id of the session can be computed", fix=NO_KEY_FIX)
        former = intake_id(replace(settings, session_key="")) if name and settings.session_key else ""
        self._sessions.open(first=former)
        earlier = {session: id_ for session, id_ in self._sessions.sessions.items() if session != name}
        self._session.expected = name in self._sessions.sessions
        if name:
            self._sessions.add(name, session_client_id(name, settings.session_key))
        return earlier

    def _connect(self) -> Bus:
        """Return the connection of the source, with this worker's session."""
        settings = self._context.settings
        session_s = SESSION_S if self._durable else 0
        bus = self._context.connect(intake_id(settings), receive_maximum=self._receive_maximum, session_s=session_s)
        bus.session_id = session_client_id(bus.client_id, settings.session_key)
        self._bus = bus
        if settings.source.max_age_ms is None:
            self._context.reporter.troubles.append((MODEL_TOO_SLOW, FrameBacklog(bus, self._receive_maximum).trouble))
        if self._durable:
            bus.on_connect(partial(self._session.check, bus))
        return bus

    def _metrics(self, failover: SessionFailover) -> Iterator[Metric]:
        """Yield the metrics of this worker's session, and of those that it has taken over."""
        yield gauge("worker_peer_workers", "Other workers of the service that are online.", len(self._peers.others))
        text = "Frames taken over from failed workers of the service."
        yield counter("worker_overtaken_frames", text, failover.taken_over)
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
        expected: the broker should have the session, because an earlier connection has left it.
        lost: how often the broker did not have it.

    """

    def __init__(self, context: WorkerContext, peers: Membership) -> None:
        self.expected = False
        self.lost = 0
        self._context = context
        self._peers = peers
        self._lost_at = float("-inf")
        #: number of connections of the worker's other bus at the last check
        self._connects = 0

    async def check(self, bus: Bus) -> None:
        """Check whether a new connection has resumed the session; count and log a lost one.

        If the worker's other connection was interrupted, too, the session may be gone because an heir has ended it.
        """
        connects = self._context.bus.stats.connects
        has_heir = connects != self._connects and bool(self._peers.others)
        if self.expected and not bus.resumed and not has_heir:
            self.lost += 1
            self._lost_at = asyncio.get_running_loop().time()
            log.warning("session lost: frames that the broker had accepted may be lost", session=bus.client_id)
        self.expected, self._connects = True, connects

    def trouble(self) -> str:
        """Return that the session was lost within the last LOST_SHOWN_S; empty otherwise."""
        if asyncio.get_running_loop().time() - self._lost_at > LOST_SHOWN_S:
            return ""
        return "the broker had lost the session of this worker: frames that it had accepted may be lost"


class SessionFailover:
    """Answers the frames of dead workers while ``run`` runs and this worker is the heir.

    Args:
        peers: the workers of the service.
        connect: makes connections to the broker.
        intake: gets the frames.
        group: the workers of a group share the frames of a camera.
        cameras: the known cameras of the service.
        receive_maximum: most frames in flight on each session.
        session_s: seconds for which the broker keeps a session after a connection.
        suspects: the journal of frames that may crash workers; None: there is none.
        key: the service's session key; empty: it has none.
        earlier: sessions of this worker's earlier processes with their client ids, which it ends.
        ended: is called with the name of each of these that has ended.

    """

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
        #: begins the name of each session for frames in the namespace
        self._prefix = f"intake.{peers.namespace}."
        self._orphans: dict[str, _Orphan] = {}
        #: the last state of each other worker that is online, without states of leaving workers
        self._last_states: dict[str, Peer] = {}
        self._changed = asyncio.Event()
        #: frames of sessions that this worker has left again, and the handlers of those that it has taken over now
        self._earlier_frames = 0
        self._handlers: dict[str, FrameHandler] = {}

    @property
    def taken_over(self) -> int:
        """The number of frames of dead workers that this worker has taken over so far."""
        return self._earlier_frames + sum(handler.submitted for handler in self._handlers.values())

    def holds(self) -> list[str]:
        """Return the names of the sessions that this worker has taken over."""
        return [name for name, orphan in self._orphans.items() if orphan.is_served]

    async def run(self, stop: asyncio.Event) -> None:
        """Take over sessions until ``stop`` is set; then finish frames in progress, and leave the rest to others."""
        self._peers.holds = self.holds
        self._orphans |= {name: _Orphan(self._now(), own=True) for name in self._earlier}
        self._review()
        self._peers.on_change(self.changed)
        for worker, peer in self._peers.others.items():
            self.changed(worker, peer, orderly=False)
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._wake_at_stop(stop), name="takeover stopped")
            while not stop.is_set():
                self._changed.clear()
                for name in self._due_sessions():
                    orphan = self._orphans[name]
                    orphan.is_served = True
                    orphan.release.clear()
                    group.create_task(self._take_over(name, orphan), name=f"session {name}")
                await _within(self._pause(), self._changed.wait())
            stopping.cancel()
            for orphan in self._orphans.values():
                orphan.release.set()

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Record the state of a worker. None: it has ended; ``orderly``: after it had answered all its frames."""
        if worker == self._peers.worker:
            return
        if peer is None:
            last_state = self._last_states.pop(worker, None)
            if last_state and last_state.intake.startswith(f"{self._prefix}{worker}") and not orderly:
                self._add_orphan(last_state.intake)
        else:
            if not peer.leaving:
                self._last_states[worker] = peer
            for name in peer.holds:
                self._add_orphan(name)
        self._review()

    # --- decisions ------------------------------------------------------------------------------------------------

    def _add_orphan(self, name: str) -> None:
        """Record that a session has no owner; names come from the bus.

        Nothing is recorded if its owner is online, its name is not valid, this worker has no key for it, or there are
        MAX_ORPHANS already.
        """
        is_known = name in self._orphans or name in self._owned_sessions() or (is_keyed(name) and not self._key)
        if is_known or not name.startswith(self._prefix) or len(self._orphans) >= MAX_ORPHANS:
            return
        with contextlib.suppress(InvalidFieldError):
            self._orphans[check_name("client id", name)] = _Orphan(self._now() + RECONNECT_GRACE_S)

    def _review(self) -> None:
        """Decide about each session without an owner after a change: forget, release or end it; wake ``run``."""
        owned = self._owned_sessions()
        is_heir = self._is_heir()
        for name, orphan in list(self._orphans.items()):
            if name in owned and not orphan.is_served:
                del self._orphans[name]
            elif name in owned or (is_heir is False and not orphan.own):
                orphan.release.set()
            elif orphan.own or _has_replacement(name, owned):
                orphan.end.set()
            else:
                orphan.end.clear()
        self._changed.set()

    def _owned_sessions(self) -> set[str]:
        """Return the names of the sessions whose owners are online."""
        return {self._peers.intake, *(peer.intake for peer in self._last_states.values())}

    def _is_heir(self) -> bool | None:
        """Whether this worker is the heir; None: it is not connected, and cannot know."""
        return self._peers.heir() == self._peers.worker if self._peers.connected else None

    def _due_sessions(self) -> list[str]:
        """Return the names of the sessions to take over now."""
        now = self._now()
        return [name for name in self._sessions_to_take() if self._orphans[name].due <= now]

    def _sessions_to_take(self) -> list[str]:
        """Return the names of the sessions that this worker has to take over, now or later.

        It takes those of its own earlier processes unless another worker serves them, and others only as the heir.
        """
        is_heir = self._is_heir()
        peer_sessions = {name for peer in self._last_states.values() for name in peer.holds}
        return [
            name
            for name, orphan in self._orphans.items()
            if not orphan.is_served and (name not in peer_sessions if orphan.own else is_heir)
        ]

    def _pause(self) -> float | None:
        """Return the seconds until the next session is due; None: there is none."""
        due = [self._orphans[name].due for name in self._sessions_to_take()]
        return max(min(due) - self._now(), 0.01) if due else None

    def _now(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def _wake_at_stop(self, stop: asyncio.Event) -> None:
        """Wake ``run`` once ``stop`` is set."""
        await stop.wait()
        self._changed.set()

    # --- one session ----------------------------------------------------------------------------------------------

    async def _take_over(self, name: str, orphan: _Orphan) -> None:
        """Answer the frames of a session until ``orphan`` is released, or the session has ended."""
        self._peers.touch()
        handler = self._handlers[name] = FrameHandler(self._intake, later=True, suspects=self._suspects)
        bus = self._connect(name, receive_maximum=self._receive_maximum, session_s=self._session_s)
        bus.session_id = self._earlier.get(name) or session_client_id(name, self._key)
        bus.once = True
        has_ended = False
        try:
            async with bus:
                has_ended = await self._serve(bus, handler, orphan)
        finally:
            del self._handlers[name]
            self._earlier_frames += handler.submitted
            orphan.is_served = False
            if has_ended and orphan.own:
                self._ended(name)
            if has_ended or name in self._owned_sessions():
                del self._orphans[name]
            # another worker took it, or there is no broker: wait, or two workers would take it from each other
            orphan.due = self._now() + (0.0 if orphan.release.is_set() else random.uniform(*RETRY_S))  # noqa: S311
            self._peers.touch()
            self._changed.set()
            log.info("session released", session=name, frames=handler.submitted, over=has_ended)

    async def _serve(self, bus: Bus, handler: FrameHandler, orphan: _Orphan) -> bool:
        """Answer the frames of a session over ``bus``, as ``_take_over`` does; return whether the session has ended."""
        await bus.subscribe(topics.CAMERA_FRAME.filter(ns=self._peers.namespace), handler, later=True, inherit=True)
        try:
            await bus.wait_connected(CONNECT_S)
        except DisconnectedError as error:
            log.info("session not taken over", session=bus.client_id, error=str(error))
            return False
        if bus.resumed:
            owner = "an earlier process" if orphan.own else "another worker"
            log.warning(f"session of {owner} resumed", session=bus.client_id)
            await _wait_first(orphan.release.wait(), orphan.end.wait(), bus.over.wait())
        if orphan.end.is_set() or not bus.resumed:
            return await self._end(bus, handler, orphan)
        handler.close()
        await _within(FINISH_S, handler.idle())
        return False

    async def _end(self, bus: Bus, handler: FrameHandler, orphan: _Orphan) -> bool:
        """Answer the remaining frames of a session and end it; return whether it has ended, within END_SESSION_S."""
        await asyncio.sleep(ARRIVAL_S if bus.resumed else 0)
        names = {"ns": self._peers.namespace, "group": self._group}
        filters = [topics.CAMERA_FRAME.filter(camera=camera, **names) for camera in self._cameras | handler.cameras]
        for filter_ in filters:
            await bus.subscribe(filter_, handler, later=True, inherit=True)
        filters.append(topics.CAMERA_FRAME.filter(ns=self._peers.namespace))
        unsubscribing = asyncio.gather(*(bus.unsubscribe(filter_) for filter_ in filters))
        await _wait_first(_within(END_SESSION_S, unsubscribing), bus.over.wait(), orphan.release.wait())
        return unsubscribing.done() and not unsubscribing.cancelled()


def intake_id(settings: WorkerSettings) -> str:
    """Return the name of a worker's session for frames: another one for other cameras, service uid or key.

    A session keeps the subscriptions of its earlier connections. Raises InvalidFieldError for a name that is too long.
    """
    return session_name(settings.client_id("intake"), settings.source.cameras, settings.uid, settings.session_key)


def _has_replacement(name: str, owned: set[str]) -> bool:
    """Whether a session among ``owned`` has the cameras of this session, or is another session of its worker.

    The last part of a session's name is a digest of its cameras (``session_name``).
    """
    worker, _, cameras = name.rpartition(".")
    owners = [session.rpartition(".") for session in owned if session and session != name]
    return any(worker == owner or cameras == owned_cameras for owner, _, owned_cameras in owners)


async def _within(seconds: float | None, work: Awaitable[object]) -> None:
    """Wait for ``work``, and cancel it after ``seconds``; None: without a deadline."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def _wait_first(*waits: Awaitable[object]) -> None:
    """Wait until one of ``waits`` ends, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
