"""Fields of a resource as plain data: its phase, its condition, and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from halimede.messages import Status


def dig(body: Any, *path: str) -> Any:
    """Return the value at a path of plain data, or None."""
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body


def phase(body: Mapping[str, Any]) -> str:
    """Return the phase to show: Terminating while the resource is being deleted."""
    if dig(body, "metadata", "deletionTimestamp"):
        return "Terminating"
    status = body.get("status")
    # a message omits fields that have their default
    return str(status.get("phase", Status().phase) or "-") if isinstance(status, Mapping) else "-"


def condition(body: Mapping[str, Any]) -> str:
    """Return the reason and message of the current condition."""
    conditions = dig(body, "status", "conditions") or []
    if not conditions:
        return "-"
    last = conditions[-1]
    return ": ".join(filter(None, (str(last.get("reason") or ""), str(last.get("message") or "")))) or "-"


def current(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the current condition, which is the last one; empty without conditions."""
    conditions = dig(body, "status", "conditions") or []
    return conditions[-1] if conditions else {}


def reason(body: Mapping[str, Any]) -> str:
    """Return the reason of the current condition."""
    return str(current(body).get("reason") or "")


def time_of(stamp: Any) -> datetime | None:
    """Return an ISO time, in UTC if it names no zone; None for other text."""
    try:
        time = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
