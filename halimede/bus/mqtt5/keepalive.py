"""Decides when a connection is dead: the broker is silent, or acknowledges nothing for too long.

A slow line is not a dead one: while something arrives in the other side's system, it has time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halimede.bus.mqtt5.buffers import SendBuffer

#: a look at the clock each: at most so many seconds apart, and as a share of the keepalive
TICK, TICK_SHARE = 1.0, 1 / 16
#: share of the keepalive that either side is silent before there is a ping: the rest is for a slow line's answer
SILENCE_SHARE = 1 / 3
#: a broker that answers pings, and for so many seconds acknowledges nothing, or takes nothing of what waits, is left
UNANSWERED_S = 60.0


class KeepAlive:
    """The keepalive state of one connection.

    Attributes:
        alive: the last byte in, or out again after a jam; as all of these in seconds of the monotonic clock.
        spoke: the last packet out.
        asked: the first packet that waits for an answer, or step of one that is on its way.
        answered: the last answer.
        patience: seconds for the answer to a ping. With the silence before it, a dead connection is found within 1.5
            times the keepalive.

    """

    __slots__ = ("_ping_at", "_pinged", "alive", "answered", "asked", "patience", "spoke")

    def __init__(self, now: float, keepalive_s: float) -> None:
        self.alive = self.spoke = self.asked = self.answered = now
        self.patience = float(keepalive_s)
        self._pinged: float | None = None
        #: the byte after which it has arrived
        self._ping_at = 0

    @property
    def pause(self) -> float:
        """Seconds to the next check."""
        return min(TICK, self.patience * TICK_SHARE)

    def hurry(self, keepalive_s: float) -> None:
        """Use the broker's keepalive if it is shorter."""
        self.patience = min(self.patience, keepalive_s)

    def pinged(self, now: float, at: int) -> None:
        """Record a ping; ``at``: the position in the sent bytes behind it."""
        self._pinged, self._ping_at = now, at

    def pong(self) -> None:
        """Record the broker's answer to the ping."""
        self._pinged = None

    def ping_due(self, now: float) -> bool:
        """Whether either side was silent for too long."""
        return self._pinged is None and now - min(self.spoke, self.alive) >= self.patience * SILENCE_SHARE

    def dead(self, now: float, out: SendBuffer, *, waiting: bool, blocked: bool) -> str:
        """Return why the connection is dead, empty if it is not.

        ``waiting``: some packet has no answer yet. ``blocked``: the socket takes nothing.
        """
        if (self._pinged is not None or waiting) and out.arrives():
            # a slow line. A program that hangs gains nothing: once its system has our ping, its time runs
            self.asked = now
            if self._pinged is not None and out.arrived_bytes < self._ping_at:
                self._pinged = now
        if self._pinged is not None and now - max(self._pinged, self.alive) >= self.patience:
            return "no answer to a ping"
        if not waiting and not blocked:
            self.answered = now
        elif now - max(self.answered, self.asked) >= UNANSWERED_S:
            return f"no acknowledgement for {UNANSWERED_S:g} s"
        return ""
