"""Whether there is a connection, in the log; and why there is none: the last reason, for whoever asks."""

from __future__ import annotations

import structlog

from halimede.errors import DisconnectedError

log = structlog.get_logger()

#: how many different reasons are logged between one good connection and the next
MOST_REASONS = 8


class ConnectionLog:
    """What one client knows of it. ``where``: the broker's address."""

    def __init__(self, where: str, client_id: str) -> None:
        self._where = where
        self._client_id = client_id
        self._cause = "no answer yet"
        self._told: set[str] = set()

    def because(self, reason: str) -> None:
        """Take a reason. A broker that was away and then does not let us in is two pieces of news."""
        self._cause = reason
        if reason not in self._told and len(self._told) < MOST_REASONS:
            self._told.add(reason)
            log.warning("bus down", broker=self._where, client=self._client_id, reason=reason)

    def over(self) -> None:
        """There is a good connection."""
        self._told.clear()
        log.info("bus connected", broker=self._where, client=self._client_id)

    def closed(self) -> None:
        """Nobody wants a connection any more: no news for the log."""
        self._cause = "closed"

    def error(self, waited_s: float | None = None) -> DisconnectedError:
        """Return what to tell who needs a connection, and has perhaps waited for one."""
        what = f"no connection to the broker at {self._where}"
        if waited_s is None:
            return DisconnectedError(f"{what} ({self._cause})")
        return DisconnectedError(
            f"{what} within {waited_s:g} s ({self._cause}): start it, or set HALIMEDE_BROKER to where it is"
        )
