"""Limits of requests to the next tier: a circuit breaker, and a congestion window in bytes. Both are pure.

``OffloadClient`` uses both.
"""

from __future__ import annotations

import math
from enum import StrEnum

from halimede.system.backoff import Backoff

#: the initial and the largest congestion window, in bytes
MAX_WINDOW = 256 * 1024 * 1024


class State(StrEnum):
    """The state of a circuit breaker: closed admits requests, open refuses them, half-open waits for one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """Decides whether to request the next tier. Pure: ``now`` is the caller's monotonic time in seconds.

    Closed, it admits all requests. It opens at once if the broker reports no subscriber, or after ``failures`` timeouts
    in a row. A timeout while other requests were answered does not count: the next tier is busy, not down. Open, it
    refuses requests for ``retry_s`` seconds, twice as long each time, up to ``max_retry_s``. Then it admits a single
    request, the probe (half-open), whose outcome closes or opens it. ``retry_s``, ``max_retry_s``: in seconds.
    ``state``: the present state.
    """

    def __init__(self, *, failures: int = 5, retry_s: float = 1.0, max_retry_s: float = 30.0) -> None:
        self.state = State.CLOSED
        self._failures = failures
        self._backoff = Backoff(retry_s, max_retry_s)
        #: while it is open: the time from which a probe is admitted
        self._retry_at = 0.0
        #: timeouts since the last answer
        self._timeouts = 0
        #: the time of the last answer
        self._heard_at = -math.inf

    def admit(self, now: float) -> bool:
        """Return whether a request may be sent. If ``state`` is half-open afterwards, that request is the probe."""
        if self.state is State.OPEN and now >= self._retry_at:
            self.state = State.HALF_OPEN
            return True
        return self.state is State.CLOSED

    def is_refusing(self, now: float) -> bool:
        """Whether ``admit`` would refuse a request now. Changes no state."""
        return self.state is State.HALF_OPEN or (self.state is State.OPEN and now < self._retry_at)

    def succeeded(self, now: float = -math.inf) -> None:
        """Close: a worker answered in time at ``now``, also with an error; without ``now``: one has come online."""
        self._heard_at = max(self._heard_at, now)
        self.state = State.CLOSED
        self._timeouts = 0
        self._backoff.reset()

    def nobody(self, now: float) -> None:
        """Open: the broker reported no subscriber."""
        self._open(now)

    def timed_out(self, now: float, since: float = math.inf) -> None:
        """Record a timeout of a request that was sent at ``since``; if another was answered since then, do nothing.

        Without ``since`` it always counts. A timeout while the circuit is open does not change the state.
        """
        if self.state is State.CLOSED and self._heard_at >= since:
            return
        self._timeouts += 1
        if self.state is State.HALF_OPEN or (self.state is State.CLOSED and self._timeouts >= self._failures):
            self._open(now)

    def reconsider(self) -> None:
        """Admit the next request as the probe at once, after a change such as a new connection."""
        if self.state is State.OPEN:
            self._retry_at = 0.0
            self._backoff.reset()

    def abandoned(self, now: float) -> None:
        """Record that a probe ended; if it had no outcome (cancelled, shed), the next request may be the probe."""
        if self.state is State.HALF_OPEN:
            self.state = State.OPEN
            self._retry_at = now

    def _open(self, now: float) -> None:
        """Open until the back-off is over; nothing if it is open already."""
        if self.state is State.OPEN:
            return
        self.state = State.OPEN
        self._retry_at = now + self._backoff.fail()


class CongestionWindow:
    """Limits the bytes of samples that the broker has not acknowledged. Pure.

    Call ``has_capacity`` before each sample, then ``carried`` or ``late``. Written bytes cannot be withdrawn: on a slow
    connection, samples whose deadline is over would still occupy the stream, and everything else would wait behind
    them. So ``window`` bounds the unacknowledged bytes, as TCP does (additive increase and multiplicative decrease,
    Chiu and Jain 1989). It is halved when a sample is not acknowledged at its deadline, and grows by one sample for
    each acknowledged window. A fast connection never reaches the limit.
    """

    def __init__(self) -> None:
        #: most bytes without acknowledgement
        self.window = MAX_WINDOW

    def has_capacity(self, size: int, owed: int) -> bool:
        """Whether a sample of ``size`` bytes may be sent while ``owed`` bytes of all messages are not acknowledged.

        It may also be sent if fewer bytes than its own are owed: results and reports, which are always in flight, must
        not block it.
        """
        return owed < size or owed + size <= self.window

    def carried(self, size: int) -> None:
        """Record that a sample of ``size`` bytes was acknowledged before its deadline."""
        if self.window < MAX_WINDOW:
            self.window = min(MAX_WINDOW, self.window + max(1, size * size // self.window))

    def late(self, size: int, owed: int) -> None:
        """Record a sample that is not acknowledged at its deadline. ``owed``: unacknowledged bytes, with its own."""
        if owed:
            self.window = max(size, min(self.window, owed) // 2, 1)
