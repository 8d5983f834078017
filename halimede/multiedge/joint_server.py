"""Joint server: receives findings of several workers, lets the joint decide, and publishes the decisions.

Each worker that may decide runs a joint server; ``Membership`` determines which worker decides. The other workers
follow the decisions, so that each of them can take over. A requester owns its deadline and its retries: it repeats
findings that were lost with a process. The joint is called in its thread, and its exceptions do not end the worker.
Waiting findings are bounded in number, bytes and time.

The loop: the bus adds new findings and other workers' tracks to two lists and sets an event. The event, or the time
that the joint has set, wakes the loop. It gives the joint the tracks, then the new findings, then lets the joint
answer the due ones. The answers go to the requesters, and the decisions to all other workers.
"""

from __future__ import annotations

import asyncio
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
from halimede.pipeline.intake import LONGEST_S
from halimede.pipeline.responders import REMEMBERED_BYTES, weight
from halimede.system.lru import LruCache
from halimede.topic import Address

M = TypeVar("M")
log = structlog.get_logger()
#: findings, and their bytes, that wait for an answer; more are refused, and requested again
CAPACITY, CAPACITY_BYTES = 512, 64 * 1024 * 1024
#: messages that wait for the broker; above that, findings wait
OUTBOX_LIMIT = 256
MAX_ANSWERS = 4096
#: tracks of other workers in the queue; above that, the oldest are dropped
MAX_TRACKS = 10_000
#: user property with the name of the deciding worker
DECIDER = "decider"
#: seconds between two checks for expired requests
EXPIRY_CHECK_S = 0.5
#: seconds until ``due`` is called again after it failed or did nothing
PAUSE_S = 1.0
#: seconds that the joint has to store its state
CLOSE_S = 3.0


class JointServer:
    """Runs one joint on a channel. ``run`` until cancelled; ``drain`` before that.

    ``decides``: whether this worker answers requests now. ``changed`` is called when ``load`` has changed. If one call
    of the joint takes longer than ``limit_s`` seconds, its worker ends: another one decides then.
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
        """Return the joint's capacity and queue."""
        return Load(credits=self._waiting.free, service_ms=round(self._service_ms, 1), queued=len(self._waiting))

    async def run(self) -> None:
        """Open the joint, subscribe, and decide until cancelled."""
        await self._thread.call(self._joint.open)  # if it fails, the worker ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.run(), name="decisions")
                group.create_task(self._thread.watch(self._limit_s), name="joint watch")
                group.create_task(self._expire(), name="findings that nobody waits for")
                for filter_ in self._channel.requests:
                    await self._bus.subscribe(filter_, self._accept)
                await self._bus.subscribe(topics.TRACK.filter(**self._names), self._follow)
                await self._bus.subscribe(
                    topics.GALLERY.filter(**self._names, worker=self._channel.worker), self._queue_track
                )
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
                if not await self._outbox.drain(timeout_s):
                    return False
        except TimeoutError:
            log.warning("findings not answered in time", pending=len(self._waiting))
            return False
        return True

    async def send_state(self, worker: str) -> bool:
        """Send a new worker the joint's state, with which it can take over; return whether all tracks were sent."""
        tracks = await self._guarded.snapshot()
        address = topics.GALLERY.at(**self._names, worker=worker)
        for sent, track in enumerate(tracks or ()):
            try:
                await self._bus.publish(address, track)
            except (BusError, *UNWRITABLE) as error:
                log.info("gallery not sent", worker=worker, error=str(error), sent=sent)
                return False
        log.info("gallery sent to worker", worker=worker, tracks=len(tracks or ()))
        return tracks is not None

    def metrics(self) -> Iterator[Metric]:
        """Return the metrics of the joint."""
        outcomes = {"answered": self.answered, "failed": self.failed, "refused": self.refused, "expired": self.expired}
        samples = [({"outcome": outcome}, count) for outcome, count in outcomes.items()]
        yield counter(
            "worker_joint_samples", "Multi-edge: findings that this worker's joint received, by outcome.", samples
        )
        yield counter(
            "worker_joint_messages", "Multi-edge: decisions of another worker that this worker followed.", self.followed
        )
        yield gauge("worker_joint_waiting", "Multi-edge: findings that wait for their answer.", len(self._waiting))
        sizes = [({"what": name}, value) for name, value in sorted(self._joint.metrics().items())]
        decides = ({"what": "decides"}, float(self._decides()))
        yield gauge(
            "worker_joint_state",
            "Multi-edge: whether this worker is the active joint, and the size of its state.",
            [decides, *sizes],
        )

    # --- messages from the bus ------------------------------------------------------------------------------------

    async def _accept(self, delivery: Delivery[Frame]) -> None:
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
        if delivery.properties.get(DECIDER) != self._channel.worker:
            await self._queue_track(delivery)

    async def _queue_track(self, delivery: Delivery[Track]) -> None:
        self._tracks.append(delivery.body)
        if len(self._tracks) > MAX_TRACKS:
            del self._tracks[0]
            self._limited_log.warning("tracks dropped: too many not applied yet")
        self._arrived.set()

    async def _answer_query(self, delivery: Delivery[IdentityQuery]) -> None:
        if not self._decides():
            return
        answer = await self._thread.call(self._joint.ask, delivery.body)
        if answer is None:
            text = "this service's application keeps no identities"
            answer = IdentityAnswer(worker=self._channel.worker, error=text)
        answer.worker = self._channel.worker
        await self._bus.reply(delivery, topics.IDENTITY_ANSWER, answer)

    # --- deciding -------------------------------------------------------------------------------------------------

    async def _decide_until_cancelled(self) -> None:
        loop = asyncio.get_running_loop()
        due: float | None = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await self._arrived.wait()
            except TimeoutError:
                pass
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
            if new:
                self._service_ms += 0.1 * ((loop.time() - began) * 1000 / len(new) - self._service_ms)

    async def _expire(self) -> None:
        """Drop findings whose requesters have timed out: a joint may hang, or never answer them."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            if expired := self._waiting.expire(asyncio.get_running_loop().time()):
                self.expired += expired
                self._idle.set()
                self._changed()

    def _fail(self, findings: list[Finding], error: str) -> None:
        """Reply to the requesters that there is no answer: they keep their own predictions."""
        for finding in findings:
            if delivery := self._waiting.pop(finding.key):
                self._idle.set()
                self.failed += 1
                reply = Reply(id=delivery.body.id, worker=self._channel.worker, error="failed", message=error)
                self._answer(delivery, reply)
        self._changed()

    async def _send_outcome(self, outcome: Outcome) -> None:
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

    def _reply(self, to: Delivery[Frame], prediction: Prediction | None) -> None:
        answer = prediction or to.body.edge or Prediction()
        self._answer(to, Reply(id=to.body.id, worker=self._channel.worker, prediction=answer, batch=1))

    def _answer(self, to: Delivery[Frame], reply: Reply) -> None:
        address = Address(self._channel.reply, to.packet.response_topic)
        self._outbox.put(address, reply, correlation=to.packet.correlation)

    def _unwritable(self, body: object, error: Exception) -> Reply | None:
        """Return the reply in place of a decision that cannot be encoded: a user's joint may return any value."""
        self._limited_log.warning("decision not sent", error=str(error))
        if not isinstance(body, Reply) or body.error:
            return None
        text = f"the joint's answer cannot be sent: {error}"[:4096]
        return Reply(id=body.id, worker=body.worker, error="failed", message=text)


@dataclass(slots=True)
class _Entry:
    delivery: Delivery[Frame]
    until: float
    size: int


class PendingFindings:
    """The pending request for each finding, by its key, with its deadline."""

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
        """Add a request; a repeated request replaces the earlier one."""
        self.pop(key)
        limit_s = delivery.body.deadline_ms / 1000
        entry = _Entry(
            delivery, now + (limit_s if 0 < limit_s < LONGEST_S else LONGEST_S), len(delivery.packet.payload)
        )
        self._entries[key] = entry
        self._bytes += entry.size

    def pop(self, key: bytes) -> Delivery[Frame] | None:
        """Remove and return the request for a finding, None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._bytes -= entry.size
        return entry.delivery

    def expire(self, now: float) -> int:
        """Drop expired requests; return their number."""
        late = [key for key, entry in self._entries.items() if entry.until <= now]
        for key in late:
            self.pop(key)
        return len(late)


def finding_of(key: bytes, asker: str, node: str, frame: Frame) -> Finding:
    """Return the finding of a worker's frame, as its joint receives it."""
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
    """The result of one call: ``error`` if it refused the new findings, ``due`` is the time of its next call."""

    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""
    due: float | None = None


class GuardedJoint:
    """Calls one joint; its exceptions are logged or become replies."""

    def __init__(self, joint: Joint, thread: ModelThread) -> None:
        self._joint = joint
        self._thread = thread

    async def follow(self, tracks: Sequence[Track]) -> None:
        """Pass on decisions of another worker. Decisions that the joint cannot read are missing in this worker only."""
        try:
            await self._thread.call(self._joint.follow, tracks)
        except Exception:
            log.exception("joint update failed", tracks=len(tracks))

    async def snapshot(self) -> list[Track] | None:
        """Return the state for another worker; None: the joint failed."""
        try:
            return await self._thread.call(lambda: list(self._joint.snapshot()))
        except Exception:
            log.exception("joint state not encoded")
            return None

    async def close(self) -> None:
        """Let the joint store its state; do not wait for a joint that hangs."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._thread.call(self._joint.close))
        except TimeoutError:
            log.warning("joint hangs: last stored state kept")
        except Exception:
            log.exception("joint not closed")

    def decide(self, new: list[Finding], now: float) -> JointReply:
        """Pass new findings to the joint, and let it answer the due ones. Call this method in the joint's thread."""
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
    if not isinstance(outcome, Outcome):
        raise TypeError(f"it must return an Outcome, not {type(outcome).__name__}")
    for answer in outcome.answers.values():
        if answer is not None and not isinstance(answer, Prediction):
            raise TypeError(f"an answer must be a Prediction or None, not {type(answer).__name__}")
    return outcome
