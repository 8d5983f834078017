"""Limits of requests to the next tier: a circuit breaker, and a congestion window in bytes. Both are pure."""

from __future__ import annotations

import math
from enum import StrEnum

from halimede.system.backoff import Backoff

#: bytes: where it starts, and what is never exceeded
MOST = 256 * 1024 * 1024


class State(StrEnum):
    """Where the breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """Whether it is worth asking the cloud. ``failures`` timeouts in a row open it; the back-off doubles.

    Pure: ``now`` is the caller's monotonic time in seconds. Closed lets everything through. It opens at once when the
    broker says that nobody listens, or after some timeouts in a row. A timeout while others were answered is a sign of
    a busy cloud and not of a dead one: it does not count. Open refuses; once its back-off is over a single probe goes
    through (half-open), and its fate decides.
    """

    def __init__(self, *, failures: int = 5, retry_s: float = 1.0, max_retry_s: float = 30.0) -> None:
        self.state = State.CLOSED
        self._failures = failures
        self._backoff = Backoff(retry_s, max_retry_s)
        self._retry_at = 0.0
        self._timeouts = 0
        self._heard_at = -math.inf

    def admit(self, now: float) -> bool:
        """Return whether a request may go out. One that was admitted in half-open state is the probe."""
        if self.state is State.OPEN and now >= self._retry_at:
            self.state = State.HALF_OPEN
            return True
        return self.state is State.CLOSED

    def refuses(self, now: float) -> bool:
        """Return whether ``admit`` would refuse a request, without asking for one."""
        return self.state is State.HALF_OPEN or (self.state is State.OPEN and now < self._retry_at)

    def succeeded(self, now: float = -math.inf) -> None:
        """Close: a worker answered in time at ``now``, be it with an error, or has appeared."""
        self._heard_at = max(self._heard_at, now)
        self.state = State.CLOSED
        self._timeouts = 0
        self._backoff.reset()

    def nobody(self, now: float) -> None:
        """The broker said that nobody listens."""
        self._open(now)

    def timed_out(self, now: float, since: float = math.inf) -> None:
        """A request made at ``since`` was not answered in time: it counts if no other one was, meanwhile.

        One that was sent before the circuit opened changes nothing more.
        """
        if self.state is State.CLOSED and self._heard_at >= since:
            return
        self._timeouts += 1
        if self.state is State.HALF_OPEN or (self.state is State.CLOSED and self._timeouts >= self._failures):
            self._open(now)

    def reconsider(self) -> None:
        """Something changed (such as the connection): let the next request be the probe without waiting."""
        if self.state is State.OPEN:
            self._retry_at = 0.0
            self._backoff.reset()

    def abandoned(self, now: float) -> None:
        """The probe ended without a verdict (cancelled, shed): the next request may try."""
        if self.state is State.HALF_OPEN:
            self.state = State.OPEN
            self._retry_at = now

    def _open(self, now: float) -> None:
        if self.state is State.OPEN:
            return
        self.state = State.OPEN
        self._retry_at = now + self._backoff.fail()


class CongestionWindow:
    """The limit in bytes. Call ``allows`` before each sample, then ``carried`` or ``late``.

    What a client has written cannot be taken back. Where a line is too slow for what a camera sees, samples whose
    deadline is over still stand in the stream, and results, reports and every later sample wait behind them. So the
    bytes that the broker has not acknowledged are bounded, the way TCP bounds what is in the network (Chiu and Jain
    1989, additive increase and multiplicative decrease): halved when a sample's deadline finds it not even
    acknowledged, raised by one sample for each window that is. A line that keeps up never notices. Pure.
    """

    def __init__(self) -> None:
        #: bytes
        self.window = MOST

    def allows(self, size: int, owed: int) -> bool:
        """Whether a sample of ``size`` bytes may go while ``owed`` are not acknowledged.

        It may behind what is less than itself: results and reports are always on their way, and must not keep it back.
        """
        return owed < size or owed + size <= self.window

    def carried(self, size: int) -> None:
        """A sample was acknowledged within its time."""
        if self.window < MOST:
            self.window = min(MOST, self.window + max(1, size * size // self.window))

    def late(self, size: int, owed: int) -> None:
        """The deadline of a sample is over and it is not acknowledged; ``owed`` bytes are not, its own included."""
        if owed:
            self.window = max(size, min(self.window, owed) // 2, 1)
