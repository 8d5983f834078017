"""Requests of an edge worker (member) to its peers, the other workers of its multi-edge service.

A finding is what a worker has found in one frame. A joint combines the findings of all members into the final answers;
each worker may have one, and that of the eldest worker decides.

A hop is a pair of topics for requests and replies. On the hop ``share`` the worker sends frames to a peer with free
capacity (``PeerOffload``), on the hop ``join`` findings to the peer whose joint decides (``JointClient``). Both are
offloads: with a limit of requests in flight, a deadline, and another peer when the first one ends. No frame waits on
``share``: the worker answers it itself if no peer can take it at once, or if the peer has not answered in time.
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
from halimede.offload.load_balancer import Choose, LoadBalancer, WorkerLoad
from halimede.pipeline.intake import RequestLimits
from halimede.tracing import FrameRecord
from halimede.worker.membership import Membership

#: names of the hops
SHARE, JOIN = "share", "join"
#: requests in flight on a hop: frames (one worker alone may have to feed all the others), and findings
MAX_IN_FLIGHT = 256
#: findings that wait for a free request: they are small, and wait for other findings of the same instant anyway
MAX_WAITING_FINDINGS = 64
#: limits of the intake of peers' frames
LIMITS = RequestLimits()
#: seconds of work up to which a worker accepts peers' frames, and the factor above which it refuses them
HORIZON_S, OVERLOAD_FACTOR = 0.25, 1.5
#: seconds between two checks for changes to publish, and in addition for each peer that receives them
CHECK_PERIOD_S, CHECK_PERIOD_PER_PEER_S = 0.1, 0.02
#: relative change of the waiting time above which the load is published
MIN_CHANGE = 0.2
#: timeout of a peer's answer: a multiple of the expected time, and the shortest one in seconds
TIMEOUT_FACTOR, MIN_TIMEOUT_S = 5.0, 0.5
#: picture of one pixel, in place of a frame's own in requests with findings
NO_PIXELS = memoryview(b"\0")
#: up to the first number, all peers with free capacity are compared; above it, the second number of them at random
MAX_COMPARED, SAMPLE_SIZE = 8, 4
#: milliseconds of a round trip and of a sample, before either was measured
FIRST_NETWORK_MS, FIRST_SERVICE_MS = 5.0, 10.0
#: the most samples that a peer's load is assumed to have, whatever it advertises
MAX_SAMPLES = 10_000
#: weight of the newest network time in the mean, if it is below or above the mean: a longer one mostly contains the
#: peer's own work, which is counted anyway
FASTER_WEIGHT, SLOWER_WEIGHT = 0.5, 0.05


class EldestPeerBalancer(LoadBalancer):
    """A ``LoadBalancer`` that picks the eldest worker with a joint, because that joint decides.

    This may be the worker itself: its findings then come back to its own joint.
    """

    def __init__(self, peers: Membership) -> None:
        super().__init__()
        self._peers = peers

    def pick(self, now: float) -> str | None:
        """Return the worker that decides, if it can accept one more finding at loop time ``now``; otherwise None."""
        eldest = self._peers.eldest()
        return eldest if eldest and self.credits_by_worker(now).get(eldest, 0) > 0 else None

    def is_up(self, now: float) -> bool:  # noqa: ARG002  # ``Membership`` knows it
        """Whether there is a worker that decides."""
        return self._peers.eldest() is not None


class JointClient(OffloadClient):
    """An ``OffloadClient`` that sends the findings of a worker to the joint that decides, without pixels.

    Call ``start`` once before.
    """

    def __init__(self, bus: Bus, namespace: str, service: str, worker: str, peers: Membership) -> None:
        channel, balancer = hop(namespace, service, JOIN, worker), EldestPeerBalancer(peers)
        super().__init__(bus, channel, window=MAX_IN_FLIGHT, waiters=MAX_WAITING_FINDINGS, credits_=balancer)

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Record what a worker announces; ``peer`` None: it has ended.

        ``orderly``: it had answered all requests before; otherwise a request that it had may have ended its process.
        """
        if peer is not None and peer.join and not peer.leaving:
            self.advertised(worker, peer.join)
            return
        if peer is not None or orderly:
            self.advertised(worker, Load(credits=0, leaving=True))
        if peer is None:
            self.gone(worker)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return the joint's answer to the finding ``frame.edge``. Raises OffloadError, also after ``deadline_s``."""
        without_pixels = msgspec.structs.replace(frame, encoding="raw", dtype="uint8", shape=[1], data=NO_PIXELS)
        return await super().ask(without_pixels, deadline_s, trace)


class PeerOffload(OffloadClient):
    """An ``OffloadClient`` that sends frames to peers which are expected to answer sooner than this worker.

    Call ``start`` once before, and ``reserve_peer`` before each ``ask``.

    Args:
        bus: the connection to the broker.
        namespace: of the service.
        service: its name.
        worker: this worker.
        local_load: returns the load of this worker.
        balance: picks the peer.

    Attributes:
        balance: picks the peer.
        shared: frames that peers answered.
        returned: frames whose request failed or was cancelled, so that this worker answers them.

    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        service: str,
        worker: str,
        local_load: Callable[[], Load],
        *,
        balance: Balance | None = None,
    ) -> None:
        self.balance = balance or Balance()
        channel = hop(namespace, service, SHARE, worker)
        super().__init__(bus, channel, window=MAX_IN_FLIGHT, waiters=0, credits_=self.balance)
        self.shared = self.returned = 0
        self._local_load = local_load
        #: milliseconds in which the peer that ``reserve_peer`` chose last is expected to answer
        self._expected_ms = 0.0

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Record what another worker announces; ``peer`` None: it has ended.

        ``orderly``: it had answered all requests before; otherwise a request that it had may have ended its process.
        """
        if worker == self._worker:
            return
        if peer is None:
            if orderly:
                self.advertised(worker, Load(credits=0, leaving=True))
            self.gone(worker)
        else:
            load = peer.share or Load(credits=0)
            self.advertised(worker, Load(credits=0, leaving=True) if peer.leaving else load)

    def reserve_peer(self) -> str | None:
        """Return the peer that is expected to finish the next frame before this worker.

        None if there is none, or after ``abandon``.

        The frame counts as sent from now on, although its request is only sent in the next iteration of the loop:
        frames come in bursts.
        """
        if self._abandoned:
            return None
        loop = asyncio.get_running_loop()
        choice = self.balance.faster_peer(self._local_load(), loop.time())
        if choice is None:
            return None
        self.balance.record_sent(choice.worker)
        loop.call_soon(self._prefer, choice)
        return choice.worker

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return a peer's answer. Raises OffloadError if no peer answers in time.

        It waits for at most half of ``deadline_s``, because this worker keeps the other half for itself. It also waits
        for at most TIMEOUT_FACTOR times the expected time, or MIN_TIMEOUT_S if that is longer.
        """
        loop = asyncio.get_running_loop()
        timeout_s = max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * self._expected_ms / 1000)
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
        """Let the next request go to this peer; its sending counts from now on, in place of the reservation."""
        self.balance.record_answer(choice.worker)
        self.balance.prefer(choice.worker)
        self._expected_ms = choice.ms


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """A peer that is expected to answer the next sample within ``ms`` milliseconds."""

    worker: str
    ms: float


class Balance(LoadBalancer):
    """A ``LoadBalancer`` that picks the peer which is expected to finish the next frame first, before this worker.

    The expected time is the queue of a worker times its time for a sample; for a peer, the measured network time is
    added. Peers limit what they accept by the credits that they advertise; between two advertisements each worker
    counts its own requests. Many workers that see the same idle peer would all choose it: so among many peers each
    worker compares only a few at random. ``choose``: draws them. ``now``: the caller's loop time in seconds.
    """

    def __init__(self, *, choose: Choose = random.sample) -> None:
        super().__init__(choose=choose)
        #: the peer that the next ``pick`` returns; empty: the best one then
        self._preferred = ""
        #: milliseconds until this worker would finish the next sample, and its time for one
        self._local_finish_ms, self._local_service_ms = math.inf, FIRST_SERVICE_MS

    def faster_peer(self, local_load: Load, now: float) -> PeerChoice | None:
        """Return the peer that would finish the next sample before this worker, of this load; None if none would."""
        self._local_service_ms = local_load.service_ms or FIRST_SERVICE_MS
        self._local_finish_ms = (local_load.queued + 1) * self._local_service_ms
        return self._best(now)

    def prefer(self, worker: str) -> None:
        """Let the next ``pick`` return this peer, if it has free capacity then."""
        self._preferred = worker

    def pick(self, now: float) -> str | None:
        """Return the preferred peer, or another one that would finish before this worker; None if there is none."""
        preferred, self._preferred = self._preferred, ""
        if preferred in self.free_workers(now):
            return preferred
        best = self._best(now)
        return best.worker if best else None

    def learn(self, worker: str, reply_ms: float, worker_ms: float) -> None:
        """Estimate a peer's network time and queue from a reply, which is newer than its last advertisement.

        ``reply_ms``: from the request to the reply; ``worker_ms``: the part of it that the peer reports as queueing and
        compute.
        """
        if peer := self._workers.get(worker):
            network_ms = max(0.0, reply_ms - worker_ms)
            mean_ms = network_ms if peer.network_ms is None else peer.network_ms
            weight = FASTER_WEIGHT if network_ms < mean_ms else SLOWER_WEIGHT
            peer.network_ms = mean_ms + weight * (network_ms - mean_ms)
            if peer.service_ms:
                queued = min(MAX_SAMPLES, (reply_ms - peer.network_ms) / peer.service_ms)
                peer.queued = max(peer.in_flight, round(queued) - 1)

    def _best(self, now: float) -> PeerChoice | None:
        """Return the peer that would finish first, if it would finish before this worker; otherwise None."""
        free = self.free_workers(now)
        candidates = free if len(free) <= MAX_COMPARED else self._choose(free, SAMPLE_SIZE)
        choices = (PeerChoice(name, self._expected_ms(self._workers[name])) for name in candidates)
        best = min(choices, key=lambda choice: choice.ms, default=None)
        return best if best and best.ms < self._local_finish_ms else None

    def _expected_ms(self, peer: WorkerLoad) -> float:
        """Return the milliseconds until a peer would finish the next sample.

        A peer without a measured time is assumed to be as fast as this worker. The time of one local sample is added,
        because the peer's queue is an estimate: otherwise frames would be sent without a gain.
        """
        network_ms = FIRST_NETWORK_MS if peer.network_ms is None else peer.network_ms
        queue = max(peer.queued, peer.in_flight)
        return (queue + 1) * (peer.service_ms or self._local_service_ms) + network_ms + self._local_service_ms


class SpareCapacity:
    """Advertises to peers how many of their frames this worker can answer within ``HORIZON_S``.

    It is the advertiser of the ``RequestIntake`` for those frames, which calls ``run``, ``touch`` and ``withdraw``.

    Args:
        local_load: returns the load of this worker.
        changed: is called when ``load`` has changed, and publishes it.
        peers: returns the number of peers. The more there are, the more seldom changes are published: otherwise the
            broker's work would grow with the square of that number.

    """

    def __init__(self, local_load: Callable[[], Load], changed: Callable[[], None], peers: Callable[[], int]) -> None:
        self._local_load = local_load
        self._changed = changed
        self._peers = peers
        self._advertised = Load(credits=0)
        self._withdrawn = False

    def load(self) -> Load:
        """Return the load to advertise. ``credits``: frames of peers that this worker can accept now."""
        if self._withdrawn:
            return Load(credits=0)
        return spare_load(self._local_load(), most=LIMITS.queue, horizon_s=HORIZON_S)

    def is_overloaded(self) -> bool:
        """Whether to refuse requests of peers because too many of them arrived at once."""
        load = self._local_load()
        return load.queued > 1 and (load.queued + 1) * load.service_ms > OVERLOAD_FACTOR * HORIZON_S * 1000

    def touch(self) -> None:
        """Do nothing when a request comes or ends: ``run`` polls the load, which own frames change, too."""

    async def run(self) -> None:
        """Check periodically whether the load has changed, and publish it then, until withdrawn or cancelled."""
        while not self._withdrawn:
            load = self.load()
            if has_changed(self._advertised, load):
                self._advertised = load
                self._changed()
            await asyncio.sleep(max(CHECK_PERIOD_S, CHECK_PERIOD_PER_PEER_S * self._peers()))

    async def withdraw(self) -> None:
        """Advertise that this worker accepts no more frames of peers."""
        self._withdrawn = True
        self._changed()


def spare_load(local_load: Load, *, most: int, horizon_s: float) -> Load:
    """Return the load to advertise to peers by a worker whose own load is ``local_load``.

    ``credits``: the samples that it can answer within ``horizon_s`` seconds after its own: at least one when it is
    idle, and at most ``most``.
    """
    capacity = int(min(most, horizon_s * 1000 / local_load.service_ms)) if local_load.service_ms else most
    credits_ = max(0, max(1, capacity) - local_load.queued)
    return Load(credits=credits_, service_ms=local_load.service_ms, queued=local_load.queued)


def has_changed(advertised: Load, load: Load) -> bool:
    """Whether peers need the new load: capacity has appeared or ended, or the waiting time has changed much."""
    advertised_ms, load_ms = (advertised.queued + 1) * advertised.service_ms, (load.queued + 1) * load.service_ms
    return bool(advertised.credits) != bool(load.credits) or abs(load_ms - advertised_ms) > MIN_CHANGE * advertised_ms
