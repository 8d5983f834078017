"""The joint server receives findings of several workers, lets the joint decide, and publishes the decisions.

Each worker that may decide runs a joint server, and the eldest one decides. The others follow its decisions, which are
tracks, so that each of them can take over. The worker that sends a finding repeats it if the server's process ended.
The joint is called in its own thread, except for its metrics, and its exceptions do not end the worker. Waiting
findings are bounded in number, bytes and time.

The loop: the bus adds new findings and other workers' tracks to two lists and sets an event. The event, or the time
that the joint has set, wakes the loop. The loop gives the joint the tracks, then the new findings, then lets the joint
answer the due ones. The answers go to the workers that sent the findings, and the decisions to all workers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from prometheus_client.core import Metric

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.bus.acked_publisher import UNWRITABLE, AckedPublisher
from halimede.bus.port import PUBLISH_TIMEOUT
from halimede.errors import BusError, describe_exception, shorten_middle
from halimede.log import RateLimitedLogger
from halimede.messages import Frame, IdentityAnswer, IdentityQuery, Load, Prediction, Reply, Track
from halimede.multiedge.stage import Finding, Joint, Outcome
from halimede.observe.metrics import counter, gauge
from halimede.offload.channel import Channel
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import MAX_DEADLINE_S
from halimede.pipeline.responders import REMEMBERED_BYTES, weight
from halimede.system.lru import LruCache
from halimede.topic import Address

M = TypeVar("M")
log = structlog.get_logger()
#: findings, and their bytes, that wait for an answer; more are refused, and requested again
CAPACITY, CAPACITY_BYTES = 512, 64 * 1024 * 1024
#: messages that wait for the broker; above that, findings wait
OUTBOX_LIMIT = 256
#: answers that are remembered, for findings that are sent again
MAX_ANSWERS = 4096
#: tracks of other workers in the queue; above that, the oldest are dropped
MAX_TRACKS = 10_000
#: MQTT user property of decisions: the name of the worker that decided
DECIDER = "decider"
#: seconds between two checks for expired requests
EXPIRY_CHECK_S = 0.5
#: seconds until ``due`` is called again after it failed or did nothing
PAUSE_S = 1.0
#: seconds that the joint has to store its state
CLOSE_S = 3.0


class JointServer:
    """Runs one joint, and answers the findings that come on a channel. ``run`` until cancelled; ``drain`` before that.

    Args:
        bus: the connection to the broker.
        joint: the joint, not opened yet; ``run`` opens it.
        channel: the topics of the requests and replies.
        thread: where all methods of the joint but ``metrics`` are called.
        decides: whether this worker is the one that decides now.
        changed: is called when ``load`` has changed.
        node_of: returns the node of a worker.
        limit_s: seconds for one call of the joint. If it takes longer, this worker ends, and another one decides.

    Attributes:
        accepted: findings that were queued for the joint.
        answered: findings that the joint has answered.
        refused: findings that found no space.
        failed: findings for which the joint raised an exception.
        expired: findings whose sender has timed out.
        followed: tracks of other workers that were passed to the joint.

    """

    def __init__(
        self,
        bus: Bus,
        joint: Joint,
        channel: Channel,
        thread: ModelThread,
        *,
        decides: Callable[[], bool],
        changed: Callable[[], None],
        node_of: Callable[[str], str],
        limit_s: float = 60.0,
    ) -> None:
        self.accepted = self.answered = self.refused = self.failed = self.expired = self.followed = 0
        self._service_ms = 0.0
        self._bus = bus
        self._joint = joint
        self._channel = channel
        self._guarded = GuardedJoint(joint, thread)
        self._thread = thread
        self._limit_s = limit_s
        self._decides = decides
        self._changed = changed
        self._node_of = node_of
        self._names = {"ns": channel.names["ns"], "service": channel.service}
        self._new: list[Finding] = []
        self._tracks: list[Track] = []
        self._waiting = PendingFindings(CAPACITY, CAPACITY_BYTES)
        self._answers: LruCache[bytes, Prediction | None] = LruCache(MAX_ANSWERS)
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._limited_log = RateLimitedLogger()
        self._outbox: AckedPublisher[Any] = AckedPublisher(
            bus,
            "decision",
            limit=OUTBOX_LIMIT,
            capacity=0,
            timeout_s=PUBLISH_TIMEOUT,
            retry=False,
            substitute=self._unwritable,
        )

    def load(self) -> Load:
        """Return its load: the findings that it can accept now, the milliseconds for a finding, and those that wait."""
        return Load(credits=self._waiting.free, service_ms=round(self._service_ms, 1), queued=len(self._waiting))

    async def run(self) -> None:
        """Open the joint, subscribe, and decide until cancelled; then let the joint store its state.

        Raises what the joint raises when it is opened; in an ExceptionGroup, BusError when a subscription fails, and
        ModelStuckError when a call of the joint takes longer than ``limit_s``.
        """
        await self._thread.call(self._joint.open)  # if it fails, the worker ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.run(), name="decisions")
                group.create_task(self._thread.watch(self._limit_s), name="joint watch")
                group.create_task(self._expire(), name="findings that nobody waits for")
                for filter_ in self._channel.requests:
                    await self._bus.subscribe(filter_, self._accept)
                await self._bus.subscribe(topics.TRACK.filter(**self._names), self._follow)
                gallery = topics.GALLERY.filter(**self._names, worker=self._channel.worker)
                await self._bus.subscribe(gallery, self._queue_track)
                await self._bus.subscribe(topics.IDENTITY_QUERY.filter(**self._names), self._answer_query)
                await self._decide_until_cancelled()
        finally:
            await self._guarded.close()

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more findings, answer the pending ones; return whether that took at most ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                for filter_ in self._channel.requests:
                    await self._bus.unsubscribe(filter_)
                while self._waiting:
                    self._idle.clear()
                    await self._idle.wait()
                return await self._outbox.drain(timeout_s)
        except TimeoutError:
            log.warning("findings not answered in time", pending=len(self._waiting))
            return False

    async def send_state(self, worker: str) -> bool:
        """Send a new worker the joint's state, with which it can take over; return whether all of it was sent."""
        tracks = await self._guarded.snapshot()
        if tracks is None:
            return False
        address = topics.GALLERY.at(**self._names, worker=worker)
        for sent, track in enumerate(tracks):
            try:
                await self._bus.publish(address, track)
            except (BusError, *UNWRITABLE) as error:
                log.info("gallery not sent", worker=worker, error=str(error), sent=sent)
                return False
        log.info("gallery sent to worker", worker=worker, tracks=len(tracks))
        return True

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the joint for Prometheus."""
        outcomes = {"answered": self.answered, "failed": self.failed, "refused": self.refused, "expired": self.expired}
        samples = [({"outcome": outcome}, count) for outcome, count in outcomes.items()]
        text = "Multi-edge: findings that this worker's joint received, by outcome."
        yield counter("worker_joint_samples", text, samples)
        text = "Multi-edge: decisions of another worker that this worker followed."
        yield counter("worker_joint_messages", text, self.followed)
        yield gauge("worker_joint_waiting", "Multi-edge: findings that wait for their answer.", len(self._waiting))
        sizes = [({"what": name}, value) for name, value in sorted(self._joint.metrics().items())]
        decides = ({"what": "decides"}, float(self._decides()))
        text = "Multi-edge: whether this worker is the active joint, and the size of its state."
        yield gauge("worker_joint_state", text, [decides, *sizes])

    # --- messages from the bus ------------------------------------------------------------------------------------

    async def _accept(self, delivery: Delivery[Frame]) -> None:
        """Queue a new finding for the joint; answer a finding that was answered before, and refuse one without space.

        A finding that already waits gets a new deadline. May wait for the outbox. Raises InvalidFieldError if the
        request has another reply topic than that of a worker.
        """
        frame = delivery.body
        asker = self._channel.asker(self._channel.reply_address(delivery.packet).text)
        key = frame.id + asker.encode()
        if key in self._answers:
            await self._outbox.wait_ready()
            self._reply(delivery, self._answers.get(key))
        elif key in self._waiting:
            self._waiting.put(key, delivery, asyncio.get_running_loop().time())
        elif not self._waiting.free or len(self._new) >= CAPACITY:
            self.refused += 1
            refusal = Reply(id=frame.id, worker=self._channel.worker, error="overloaded", message="too many wait")
            await self._outbox.wait_ready()
            self._answer(delivery, refusal)
        else:
            self.accepted += 1
            self._waiting.put(key, delivery, asyncio.get_running_loop().time())
            self._new.append(finding_of(key, asker, self._node_of(asker), frame))
            self._arrived.set()
            self._changed()

    async def _follow(self, delivery: Delivery[Track]) -> None:
        """Queue a track that another worker has decided."""
        if delivery.properties.get(DECIDER) != self._channel.worker:
            await self._queue_track(delivery)

    async def _queue_track(self, delivery: Delivery[Track]) -> None:
        """Queue a track for ``Joint.follow``; if there are too many, drop the oldest."""
        self._tracks.append(delivery.body)
        if len(self._tracks) > MAX_TRACKS:
            del self._tracks[0]
            self._limited_log.warning("tracks dropped: too many not applied yet")
        self._arrived.set()

    async def _answer_query(self, delivery: Delivery[IdentityQuery]) -> None:
        """Answer an operator's query about an identity, if this worker decides.

        Raises BusError, and what the joint raises.
        """
        if not self._decides():
            return
        answer = await self._thread.call(self._joint.ask, delivery.body)
        if answer is None:
            answer = IdentityAnswer(worker="", error="this service's application keeps no identities")
        answer.worker = self._channel.worker
        await self._bus.reply(delivery, topics.IDENTITY_ANSWER, answer)

    # --- deciding -------------------------------------------------------------------------------------------------

    async def _decide_until_cancelled(self) -> None:
        """Pass tracks and findings to the joint as they come, and let it answer when answers are due."""
        loop = asyncio.get_running_loop()
        due: float | None = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._arrived.wait()
            self._arrived.clear()
            tracks, self._tracks = self._tracks, []
            if tracks:
                self.followed += len(tracks)
                await self._guarded.follow(tracks)
            new = [finding for finding in self._new if finding.key in self._waiting]
            self._new = []
            began = loop.time()
            decision = await self._thread.call(self._guarded.decide, new, began)
            due = decision.due
            if decision.error:
                self._fail(new, decision.error)
            for outcome in decision.outcomes:
                await self._send_outcome(outcome)
            if new:  # a running mean, in which the newest call weighs a tenth
                self._service_ms += 0.1 * ((loop.time() - began) * 1000 / len(new) - self._service_ms)

    async def _expire(self) -> None:
        """Drop findings whose senders have timed out, until cancelled: a joint may hang, or never answer them."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            if expired := self._waiting.expire(asyncio.get_running_loop().time()):
                self.expired += expired
                self._idle.set()
                self._changed()

    def _fail(self, findings: list[Finding], error: str) -> None:
        """Reply to the senders of findings that there is no answer: they keep their own predictions."""
        for finding in findings:
            if delivery := self._waiting.pop(finding.key):
                self._idle.set()
                self.failed += 1
                reply = Reply(id=delivery.body.id, worker=self._channel.worker, error="failed", message=error)
                self._answer(delivery, reply)
        self._changed()

    async def _send_outcome(self, outcome: Outcome) -> None:
        """Reply to the senders of the answered findings, remember the answers, and publish the decisions."""
        for key, prediction in outcome.answers.items():
            if prediction is None or weight(prediction) <= REMEMBERED_BYTES:
                self._answers.put(key, prediction)
            delivery = self._waiting.pop(key)
            if delivery is not None:
                self._idle.set()
                self.answered += 1
                self._reply(delivery, prediction)
        await self._publish(topics.TRACK.at(**self._names), outcome.tracks)
        await self._publish(topics.FUSED.at(**self._names), outcome.fused)
        if outcome.answers:
            self._changed()

    async def _publish(self, address: Address[M], bodies: Iterable[M]) -> None:
        """Publish decisions; wait only while too many messages are in flight."""
        for body in bodies:
            await self._outbox.wait_ready()
            self._outbox.put(address, body, properties={DECIDER: self._channel.worker})

    def _reply(self, request: Delivery[Frame], prediction: Prediction | None) -> None:
        """Reply to a finding with the joint's prediction; None: with that of the finding itself."""
        answer = prediction or request.body.edge or Prediction()
        self._answer(request, Reply(id=request.body.id, worker=self._channel.worker, prediction=answer, batch=1))

    def _answer(self, request: Delivery[Frame], reply: Reply) -> None:
        """Hand a reply over to the outbox."""
        address = Address(self._channel.reply, request.packet.response_topic)
        self._outbox.put(address, reply, correlation=request.packet.correlation)

    def _unwritable(self, body: object, error: Exception) -> Reply | None:
        """Return the message to send in place of one that cannot be encoded: a user's joint may return any value.

        None: nothing is sent, because it is no reply, or an error already.
        """
        self._limited_log.warning("decision not sent", error=str(error))
        if not isinstance(body, Reply) or body.error:
            return None
        text = f"the joint's answer cannot be sent: {error}"[:4096]
        return Reply(id=body.id, worker=body.worker, error="failed", message=text)


@dataclass(slots=True)
class _Entry:
    """A request with its deadline ``until`` (loop time), and the ``size`` of its payload in bytes."""

    delivery: Delivery[Frame]
    until: float
    size: int


class PendingFindings:
    """The requests with findings that wait for an answer, by the finding's key.

    It has space until there are ``most`` of them, or until their payloads have ``most_bytes``.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: dict[bytes, _Entry] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    @property
    def free(self) -> int:
        """The number of findings that can be added."""
        return 0 if self._bytes >= self._most_bytes else max(0, self._most - len(self))

    def put(self, key: bytes, delivery: Delivery[Frame], now: float) -> None:
        """Add a request at loop time ``now``; a repeated request replaces the earlier one."""
        self.pop(key)
        limit_s = delivery.body.deadline_ms / 1000
        until = now + (limit_s if 0 < limit_s < MAX_DEADLINE_S else MAX_DEADLINE_S)
        entry = self._entries[key] = _Entry(delivery, until, len(delivery.packet.payload))
        self._bytes += entry.size

    def pop(self, key: bytes) -> Delivery[Frame] | None:
        """Remove and return the request with a finding; None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._bytes -= entry.size
        return entry.delivery

    def expire(self, now: float) -> int:
        """Remove the requests whose deadline is over at loop time ``now``; return their number."""
        late = [key for key, entry in self._entries.items() if entry.until <= now]
        for key in late:
            self.pop(key)
        return len(late)


def finding_of(key: bytes, asker: str, node: str, frame: Frame) -> Finding:
    """Return the finding in a request of the worker ``asker``, as the joint receives it."""
    return Finding(
        key=key,
        camera=frame.camera,
        worker=asker,
        node=node,
        sequence=frame.sequence,
        captured_ns=frame.captured_ns,
        prediction=frame.edge or Prediction(),
    )


@dataclass(slots=True)
class JointReply:
    """The result of one call of the joint.

    Attributes:
        outcomes: its answers and decisions.
        error: why it failed on the new findings; empty if it did not.
        due: loop time of the next call; None: not before the next finding or track.

    """

    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""
    due: float | None = None


class GuardedJoint:
    """Calls one joint in its thread; the joint's exceptions are logged or become the error of a reply."""

    def __init__(self, joint: Joint, thread: ModelThread) -> None:
        self._joint = joint
        self._thread = thread

    async def follow(self, tracks: Sequence[Track]) -> None:
        """Pass decisions of another worker to the joint. If the joint fails on them, this worker lacks them."""
        try:
            await self._thread.call(self._joint.follow, tracks)
        except Exception:
            log.exception("joint update failed", tracks=len(tracks))

    async def snapshot(self) -> list[Track] | None:
        """Return the joint's state, for another worker; None: the joint failed."""
        try:
            return await self._thread.call(lambda: list(self._joint.snapshot()))
        except Exception:
            log.exception("joint state not encoded")
            return None

    async def close(self) -> None:
        """Let the joint store its state, and wait until it has, at most CLOSE_S seconds."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._thread.call(self._joint.close))
        except TimeoutError:
            log.warning("joint hangs: last stored state kept")
        except Exception:
            log.exception("joint not closed")

    def decide(self, new: list[Finding], now: float) -> JointReply:
        """Pass new findings to the joint at loop time ``now``, and let it answer the due ones.

        Call this method in the joint's thread.
        """
        reply = JointReply()
        try:
            if new:
                reply.outcomes.append(_check_outcome(self._joint.take(new, now)))
        except Exception as error:
            log.exception("joint failed", findings=len(new))
            reply.error = shorten_middle(f"the joint failed: {describe_exception(error)}", 4096)
        try:
            reply.outcomes.append(_check_outcome(self._joint.due(now)))
            reply.due = self._joint.next_due()
            if reply.due is not None and not reply.due > now:
                reply.due = now + PAUSE_S  # ``due`` was called just now, but did nothing
        except Exception:
            log.exception("joint timer failed")
            reply.due = now + PAUSE_S
        return reply


def _check_outcome(outcome: Outcome) -> Outcome:
    """Return what a joint has returned. Raises TypeError if that has a wrong type."""
    if not isinstance(outcome, Outcome):
        raise TypeError(f"it must return an Outcome, not {type(outcome).__name__}")
    for answer in outcome.answers.values():
        if answer is not None and not isinstance(answer, Prediction):
            raise TypeError(f"an answer must be a Prediction or None, not {type(answer).__name__}")
    return outcome
