"""Limits of requests to the next tier: a circuit breaker, and a congestion window in bytes. Both are pure."""

from __future__ import annotations

import math
from enum import StrEnum

from halimede.system.backoff import Backoff

#: bytes: the initial and the largest window
MOST = 256 * 1024 * 1024


class State(StrEnum):
    """States of the circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """Decides whether to request the next tier. ``failures`` timeouts in a row open it; back-off doubles.

    Pure: ``now`` is the caller's monotonic time in seconds. Closed admits all requests. It opens at once if the broker
    reports no subscriber, or after some consecutive timeouts. A timeout while other requests were answered does not
    count: the next tier is busy, not down. Open refuses; after its back-off it admits a single probe (half-open), whose
    outcome decides.
    """

    def __init__(self, *, failures: int = 5, retry_s: float = 1.0, max_retry_s: float = 30.0) -> None:
        self.state = State.CLOSED
        self._failures = failures
        self._backoff = Backoff(retry_s, max_retry_s)
        self._retry_at = 0.0
        self._timeouts = 0
        self._heard_at = -math.inf

    def admit(self, now: float) -> bool:
        """Return whether a request may be sent. A request admitted in half-open state is the probe."""
        if self.state is State.OPEN and now >= self._retry_at:
            self.state = State.HALF_OPEN
            return True
        return self.state is State.CLOSED

    def refuses(self, now: float) -> bool:
        """Return whether ``admit`` would refuse a request, without a change of state."""
        return self.state is State.HALF_OPEN or (self.state is State.OPEN and now < self._retry_at)

    def succeeded(self, now: float = -math.inf) -> None:
        """Close: a worker answered in time at ``now``, also with an error, or has come online."""
        self._heard_at = max(self._heard_at, now)
        self.state = State.CLOSED
        self._timeouts = 0
        self._backoff.reset()

    def nobody(self, now: float) -> None:
        """Open: the broker reported no subscriber."""
        self._open(now)

    def timed_out(self, now: float, since: float = math.inf) -> None:
        """Record a timeout of a request sent at ``since``; an answer to another request since then cancels it.

        A timeout of a request that was sent before the circuit opened has no further effect.
        """
        if self.state is State.CLOSED and self._heard_at >= since:
            return
        self._timeouts += 1
        if self.state is State.HALF_OPEN or (self.state is State.CLOSED and self._timeouts >= self._failures):
            self._open(now)

    def reconsider(self) -> None:
        """Make the next request the probe without waiting, after a change such as a new connection."""
        if self.state is State.OPEN:
            self._retry_at = 0.0
            self._backoff.reset()

    def abandoned(self, now: float) -> None:
        """Record that the probe ended without an outcome (cancelled, shed): the next request may be one."""
        if self.state is State.HALF_OPEN:
            self.state = State.OPEN
            self._retry_at = now

    def _open(self, now: float) -> None:
        if self.state is State.OPEN:
            return
        self.state = State.OPEN
        self._retry_at = now + self._backoff.fail()


class CongestionWindow:
    """A limit in bytes. Call ``allows`` before each sample, then ``carried`` or ``late``.

    Written bytes cannot be withdrawn. If a connection is too slow for a camera's samples, samples whose deadline is
    over still occupy the stream, and results, reports and every later sample wait behind them. So the bytes that the
    broker has not acknowledged are bounded, as TCP bounds the bytes in the network (Chiu and Jain 1989, additive
    increase and multiplicative decrease): the window is halved when a sample is not acknowledged at its deadline, and
    grows by one sample for each acknowledged window. A fast enough connection never reaches the limit. Pure.
    """

    def __init__(self) -> None:
        #: bytes
        self.window = MOST

    def allows(self, size: int, owed: int) -> bool:
        """Whether a sample of ``size`` bytes may be sent while ``owed`` bytes are not acknowledged.

        It may also be sent if fewer bytes than its own are owed: results and reports are always in flight, and must not
        block it.
        """
        return owed < size or owed + size <= self.window

    def carried(self, size: int) -> None:
        """Record that a sample was acknowledged within its time."""
        if self.window < MOST:
            self.window = min(MOST, self.window + max(1, size * size // self.window))

    def late(self, size: int, owed: int) -> None:
        """Record a sample that is not acknowledged at its deadline; ``owed`` includes its own bytes."""
        if owed:
            self.window = max(size, min(self.window, owed) // 2, 1)
