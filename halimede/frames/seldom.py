"""Log lines about single samples, so that a stream of bad ones does not become a stream of lines."""

from __future__ import annotations

import asyncio

import structlog

log = structlog.get_logger()

EVERY_S = 10.0


class Seldom:
    """Logs an event at most every ten seconds, with how many of its kind went unsaid (they are counted elsewhere)."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning, if it is time for one."""
        now = asyncio.get_running_loop().time()
        if now < self._due.get(event, now):
            self._unsaid[event] = self._unsaid.get(event, 0) + 1
            return
        self._due[event] = now + EVERY_S
        log.warning(event, **fields, unsaid=self._unsaid.pop(event, 0))
