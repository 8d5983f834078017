"""Decides when a connection is dead: the broker is silent, or acknowledges nothing for too long.

The connection tells it what is sent and received, and asks ``must_ping`` and ``why_dead``. A slow connection is not a
dead one: while bytes arrive at the peer's system, the deadline moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halimede.bus.mqtt5.buffers import SendBuffer

#: interval of checks: most seconds, and as a share of the keepalive, so that a dead connection is found within 1.5
#: times the keepalive, however short
TICK, TICK_SHARE = 1.0, 1 / 16
#: share of the keepalive of silence in either direction before a ping: the rest is for a slow connection's answer
SILENCE_SHARE = 1 / 3
#: seconds after which a connection ends whose broker answers pings, but acknowledges nothing or accepts no bytes
UNANSWERED_S = 60.0


class KeepAlive:
    """The keepalive state of one connection. All times are seconds of the monotonic clock.

    Attributes:
        alive: time of the last received byte, or of the last write after a jam.
        spoke: time of the last sent packet.
        waiting_since: time of the first packet without an answer, or of the last progress in sending it.
        answered: time of the last acknowledgement, or when nothing waited for one.
        patience: seconds for the answer to a ping. With the silence before it, a dead connection is found within 1.5
            times the keepalive.

    """

    __slots__ = ("_ping_at", "_pinged", "alive", "answered", "patience", "spoke", "waiting_since")

    def __init__(self, now: float, keepalive_s: float) -> None:
        self.alive = self.spoke = self.waiting_since = self.answered = now
        self.patience = float(keepalive_s)
        self._pinged: float | None = None
        #: the position in the sent bytes after which the ping has arrived
        self._ping_at = 0

    @property
    def pause(self) -> float:
        """Seconds until the next check."""
        return min(TICK, self.patience * TICK_SHARE)

    def shorten(self, keepalive_s: float) -> None:
        """Use the broker's keepalive in seconds if that is shorter."""
        self.patience = min(self.patience, keepalive_s)

    def record_ping(self, now: float, at: int) -> None:
        """Record that a ping was sent; ``at``: the position after it in the sent bytes."""
        self._pinged, self._ping_at = now, at

    def record_pong(self) -> None:
        """Record the broker's answer to the ping."""
        self._pinged = None

    def record_pause(self, now: float) -> None:
        """Record that nothing is read at present: answers of the broker, to pings as well, wait in the socket."""
        self.alive = self.answered = now
        self._pinged = None

    def must_ping(self, now: float) -> bool:
        """Whether to send a ping: either direction was silent for too long, and no ping waits for its answer."""
        return self._pinged is None and now - min(self.spoke, self.alive) >= self.patience * SILENCE_SHARE

    def why_dead(self, now: float, out: SendBuffer, *, waiting: bool, blocked: bool) -> str:
        """Return why the connection is dead, empty if it is not. Moves the deadlines of a connection that is alive.

        ``out``: the bytes to send. ``waiting``: a packet has no answer yet. ``blocked``: the socket accepts no bytes.
        """
        if (self._pinged is not None or waiting) and out.has_progress():
            # a slow connection. A hanging process gains no time: once its system has the ping, the deadline stands
            self.waiting_since = now
            if self._pinged is not None and out.arrived_bytes < self._ping_at:
                self._pinged = now
        if self._pinged is not None and now - max(self._pinged, self.alive) >= self.patience:
            return "no answer to a ping"
        if not waiting and not blocked:
            self.answered = now
        elif now - max(self.answered, self.waiting_since) >= UNANSWERED_S:
            return f"no acknowledgement for {UNANSWERED_S:g} s"
        return ""
