"""Requests of a member to its peers: frames to one with free capacity, findings to the deciding one.

Both are offloads (``OffloadClient``, ``RequestIntake``) on their own hops: with a window, a deadline, and another peer
when the first one ends. On the hop ``share`` no frame waits: the worker answers a frame itself if no peer can take it
at once, or if the peer has not answered in time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from halimede.bus import Bus
from halimede.messages import Frame, Load, Peer, Reply
from halimede.offload import OffloadClient
from halimede.offload.channel import hop
from halimede.offload.load_balancer import STALE_S, Choose, LoadBalancer, WorkerLoad
from halimede.pipeline.intake import RequestLimits
from halimede.tracing import FrameRecord
from halimede.worker.membership import Membership

SHARE, JOIN = "share", "join"
#: requests in flight on a hop: frames (one worker alone may have to feed all the others), and findings
WINDOW = 256
#: findings that wait for a free request: they are small, and wait for other findings of the same instant anyway
WAITERS = 64
LIMITS = RequestLimits()
#: seconds of work up to which a worker accepts peers' frames, and the factor above which it refuses them
HORIZON_S, OVERRUN = 0.25, 1.5
#: seconds between two checks for changes to publish, and in addition for each peer that receives them
CHECK_S, CHECK_PER_PEER_S = 0.1, 0.02
#: relative change of the waiting time that is published
LEAST_CHANGE = 0.2
#: timeout of a peer's answer: a multiple of the expected time, and the shortest one in seconds
TIMEOUT_FACTOR, LEAST_TIMEOUT_S = 5.0, 0.5
NO_PIXELS = memoryview(b"\0")
#: up to the first number, all peers with free capacity are compared; above it, the second number of them at random
MAX_COMPARED, SAMPLE_SIZE = 8, 4
#: milliseconds of a round trip and of a sample, before either was measured
FIRST_NETWORK_MS, FIRST_SERVICE_MS = 5.0, 10.0
#: the most samples that a peer's load is assumed to have, whatever it advertises
MAX_SAMPLES = 10_000
#: weight of the newest round trip in the mean: a slow one mostly contains the peer's own work, which is counted anyway
FASTER_WEIGHT, SLOWER_WEIGHT = 0.5, 0.05


class EldestPeerBalancer(LoadBalancer):
    """Picks the eldest peer that can take findings: it runs the joint that decides."""

    def __init__(self, peers: Membership) -> None:
        super().__init__()
        self._peers = peers

    def pick(self, now: float) -> str | None:
        """Return the eldest peer, if it can accept one more finding."""
        eldest = self._peers.eldest()
        return eldest if eldest and self.left(now).get(eldest, 0) > 0 else None

    def known(self, now: float) -> bool:  # noqa: ARG002  # peers know whether one is there
        """Whether any peer decides."""
        return self._peers.eldest() is not None


class JointClient(OffloadClient):
    """Requests the joint's decision about one worker's findings, without their pixels. Call ``start`` once before."""

    def __init__(self, bus: Bus, namespace: str, service: str, worker: str, peers: Membership) -> None:
        channel, balancer = hop(namespace, service, JOIN, worker), EldestPeerBalancer(peers)
        super().__init__(bus, channel, window=WINDOW, waiters=WAITERS, credits_=balancer)

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Record a worker's announcement; None: the worker has ended, in order or not."""
        if peer is not None and peer.join and not peer.leaving:
            self.advertised(worker, peer.join)
            return
        if peer is not None or orderly:
            self.advertised(worker, Load(credits=0, leaving=True))
        if peer is None:
            self.gone(worker)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return the joint's answer to a frame's finding. Raises OffloadError."""
        slim = msgspec.structs.replace(frame, encoding="raw", dtype="uint8", shape=[1], data=NO_PIXELS)
        return await super().ask(slim, deadline_s, trace)


class PeerOffload(OffloadClient):
    """Decides for each frame whether a peer shall answer it, and sends the request. Call ``start`` once before.

    ``home`` returns the load of this worker.
    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        service: str,
        worker: str,
        home: Callable[[], Load],
        *,
        balance: Balance | None = None,
        window: int = WINDOW,
    ) -> None:
        self.balance = balance or Balance()
        channel = hop(namespace, service, SHARE, worker)
        super().__init__(bus, channel, window=window, waiters=0, credits_=self.balance)
        #: frames that peers answered; frames that this worker answered after a failed request
        self.shared = self.returned = 0
        self._home = home
        self._expected_ms = 0.0

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Record a peer's announcement; None: the peer has ended, in order or not."""
        if worker == self._worker:
            return
        if peer is None:
            if orderly:
                self.advertised(worker, Load(credits=0, leaving=True))
            self.gone(worker)
        else:
            load = peer.share or Load(credits=0)
            self.advertised(worker, Load(credits=0, leaving=True) if peer.leaving else load)

    def elsewhere(self) -> bool:
        """Whether a peer is expected to finish the next frame before this worker.

        Until its request is sent, in the next iteration of the loop, the frame counts as sent: frames come in bursts.
        """
        if self._abandoned:
            return False
        loop = asyncio.get_running_loop()
        choice = self.balance.faster_peer(self._home(), loop.time())
        if choice is None:
            return False
        self.balance.sent(choice.worker)
        loop.call_soon(self._prefer, choice)
        return True

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return a peer's answer. Raises OffloadError; then this worker has half of the time to answer the frame."""
        loop = asyncio.get_running_loop()
        timeout_s = max(LEAST_TIMEOUT_S, TIMEOUT_FACTOR * self._expected_ms / 1000)
        began = loop.time()
        try:
            reply = await super().ask(frame, min(deadline_s / 2, timeout_s), trace)
        except BaseException:
            self.returned += 1
            raise
        self.shared += 1
        self.balance.learn(reply.worker, (loop.time() - began) * 1000, reply.queue_ms + reply.compute_ms)
        return reply

    def _prefer(self, choice: PeerChoice) -> None:
        """Send the request to this peer; from now on the client counts it as in flight."""
        self.balance.answered(choice.worker)
        self.balance.prefer(choice.worker)
        self._expected_ms = choice.ms


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """A peer that is expected to answer the next sample within ``ms`` milliseconds."""

    worker: str
    ms: float


class Balance(LoadBalancer):
    """Picks the worker that is expected to finish the next frame first, this one included. Without clock or bus.

    The expected time is the queue of a worker times its time for a sample; for a peer, the measured network time is
    added. Peers limit what they accept by the credits that they advertise, and between two advertisements each
    requester counts its own requests. Many requesters that see the same idle worker would all choose it: if there are
    many peers, each requester compares only a few at random, as ``LoadBalancer`` does and for the same reason. ``now``
    is the caller's monotonic time in seconds.
    """

    def __init__(self, *, stale_s: float = STALE_S, choose: Choose = random.sample) -> None:
        super().__init__(stale_s=stale_s, choose=choose)
        self._preferred = ""
        #: when this worker would finish the next sample, and its time for one
        self._home_ms, self._usual_ms = math.inf, FIRST_SERVICE_MS

    def faster_peer(self, home: Load, now: float) -> PeerChoice | None:
        """Return the peer that would finish the next sample before this worker, None if there is none."""
        self._usual_ms = home.service_ms or FIRST_SERVICE_MS
        self._home_ms = (home.queued + 1) * self._usual_ms
        return self._best(now)

    def prefer(self, worker: str) -> None:
        """Set the peer that the next ``pick`` shall return if it has free capacity then."""
        self._preferred = worker

    def pick(self, now: float) -> str | None:
        """Return the preferred peer, or another one that would finish before this worker."""
        preferred, self._preferred = self._preferred, ""
        if preferred in self.free(now):
            return preferred
        best = self._best(now)
        return best.worker if best else None

    def learn(self, worker: str, reply_ms: float, worker_ms: float) -> None:
        """Record the duration of a reply, and the part of it that the worker reports as queueing and compute.

        The duration shows the load of a worker better than its last advertisement does, and arrives more often.
        """
        if peer := self._workers.get(worker):
            network_ms = max(0.0, reply_ms - worker_ms)
            before = network_ms if peer.network_ms is None else peer.network_ms
            peer.network_ms = before + (FASTER_WEIGHT if network_ms < before else SLOWER_WEIGHT) * (network_ms - before)
            if peer.service_ms:
                queued = min(MAX_SAMPLES, (reply_ms - peer.network_ms) / peer.service_ms)
                peer.queued = max(peer.in_flight, round(queued) - 1)

    def _best(self, now: float) -> PeerChoice | None:
        """Return the peer that would finish first, if it finishes before this worker."""
        free = self.free(now)
        candidates = free if len(free) <= MAX_COMPARED else self._choose(free, SAMPLE_SIZE)
        choices = (PeerChoice(name, self._expected_ms(self._workers[name])) for name in candidates)
        best = min(choices, key=lambda choice: choice.ms, default=None)
        return best if best and best.ms < self._home_ms else None

    def _expected_ms(self, peer: WorkerLoad) -> float:
        """Return when a peer would finish; a peer without a measured time is assumed to be as fast as this worker.

        Its queue is an estimate: the time of one local sample is added, or frames would be sent without a gain.
        """
        network_ms = FIRST_NETWORK_MS if peer.network_ms is None else peer.network_ms
        queue = max(peer.queued, peer.in_flight)
        return (queue + 1) * (peer.service_ms or self._usual_ms) + network_ms + self._usual_ms


class SpareCapacity:
    """Advertises to peers how many of their frames fill this worker's next ``HORIZON_S`` seconds of work.

    It is the advertiser of the ``RequestIntake`` for those frames. ``changed`` is called when the load has changed, and
    reads ``load``. ``peers`` is the number of receivers, which lengthens the interval: otherwise the broker's work
    would grow with the square of that number.
    """

    def __init__(self, home: Callable[[], Load], changed: Callable[[], None], peers: Callable[[], int]) -> None:
        self._home = home
        self._changed = changed
        self._peers = peers
        self._advertised = Load(credits=0)
        self._withdrawn = False

    def load(self) -> Load:
        """Return what this worker can accept now."""
        if self._withdrawn:
            return Load(credits=0)
        return spare(self._home(), most=LIMITS.queue, horizon_s=HORIZON_S)

    def is_overloaded(self) -> bool:
        """Whether to refuse requests of peers because too many of them arrived at once."""
        home = self._home()
        return home.queued > 1 and (home.queued + 1) * home.service_ms > OVERRUN * HORIZON_S * 1000

    def touch(self) -> None:
        """Do nothing: ``run`` polls the load, because the worker's own frames change it, too."""

    async def run(self) -> None:
        """Check for changes periodically, until withdrawn or cancelled."""
        while not self._withdrawn:
            load = self.load()
            if has_changed(self._advertised, load):
                self._advertised = load
                self._changed()
            await asyncio.sleep(max(CHECK_S, CHECK_PER_PEER_S * self._peers()))

    async def withdraw(self) -> None:
        """Accept no more frames."""
        self._withdrawn = True
        self._changed()


def spare(home: Load, *, most: int, horizon_s: float) -> Load:
    """Return how many samples of peers a worker can accept, if the load of its own model is ``home``.

    It accepts samples that it can answer within ``horizon_s`` seconds: at least one when idle, and at most ``most``.
    """
    capacity = int(min(most, horizon_s * 1000 / home.service_ms)) if home.service_ms else most
    credits_ = max(0, max(1, capacity) - home.queued)
    return Load(credits=credits_, service_ms=home.service_ms, queued=home.queued)


def has_changed(advertised: Load, load: Load) -> bool:
    """Whether peers need the new load: capacity has appeared or ended, or the wait differs much."""
    before, now = (advertised.queued + 1) * advertised.service_ms, (load.queued + 1) * load.service_ms
    return bool(advertised.credits) != bool(load.credits) or abs(now - before) > LEAST_CHANGE * before
