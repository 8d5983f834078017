"""Times as people type them: ``90s``, ``10m``, ``2h``, ``1d`` ago, or a moment in ISO form."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from halimede.errors import InvalidFieldError

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def since(text: str, now: datetime | None = None, *, field: str = "--since") -> datetime | None:
    """Return the moment that an option names, None for an empty text. Raises InvalidFieldError."""
    if not text:
        return None
    try:
        if ago := re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII):
            return (now or datetime.now(UTC)) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        told = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        fix = "write 90s, 10m, 2h or 1d for so long ago, or a time such as 2026-01-31T12:00:00"
        raise InvalidFieldError(field, text, fix) from None
    return told if told.tzinfo else told.astimezone()
