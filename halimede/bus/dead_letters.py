"""Dead letters: what is said of a message that nobody could read, and how often.

A flood of bad messages is no reason for a flood of letters: beyond a few a second they are only counted.
"""

from __future__ import annotations

import asyncio

import structlog

from halimede.bus.message import Packet
from halimede.messages import DeadLetter

log = structlog.get_logger()

DEAD_LETTERS_PER_SECOND = 10
HEAD_BYTES = 32


class DeadLetterPublisher:
    """Those of one client."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        #: seconds of the loop's clock
        self._recent: list[float] = []

    def write(self, packet: Packet, reason: str) -> DeadLetter | None:
        """Log an unreadable message; return what to say of it, None when too much was said of late."""
        now = asyncio.get_running_loop().time()
        self._recent = [t for t in self._recent if now - t < 1]
        if len(self._recent) >= DEAD_LETTERS_PER_SECOND:
            return None  # counted, and a flood fills neither the log nor its disk
        self._recent.append(now)
        log.warning("message refused", topic=packet.topic[:256], reason=reason[:4096], size=len(packet.payload))
        return DeadLetter(
            client=self._client_id[:256],
            topic=packet.topic[:4096],
            reason=reason[:4096],
            size=len(packet.payload),
            head=packet.payload[:HEAD_BYTES].hex(),
        )
