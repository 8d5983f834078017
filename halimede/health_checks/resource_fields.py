"""Reads fields of a resource's body, which is plain data: its phase, its current condition, and times.

The current condition is the last one of the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from halimede.messages import Status


def dig(body: Any, *path: str) -> Any:
    """Return the value at a path of keys in nested mappings; None if it is missing."""
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body


def phase(body: Mapping[str, Any]) -> str:
    """Return the phase to show: Terminating while the resource is being deleted, ``-`` without a status."""
    if dig(body, "metadata", "deletionTimestamp"):
        return "Terminating"
    status = body.get("status")
    # a message omits fields that have their default
    return str(status.get("phase", Status().phase) or "-") if isinstance(status, Mapping) else "-"


def condition_text(body: Mapping[str, Any]) -> str:
    """Return ``<reason>: <message>`` of the current condition; ``-`` without them."""
    condition = current_condition(body)
    return ": ".join(filter(None, (str(condition.get(key) or "") for key in ("reason", "message")))) or "-"


def current_condition(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the current condition; an empty mapping without conditions."""
    conditions = dig(body, "status", "conditions") or []
    return conditions[-1] if conditions else {}


def reason(body: Mapping[str, Any]) -> str:
    """Return the reason of the current condition; empty without one."""
    return str(current_condition(body).get("reason") or "")


def time_of(stamp: Any) -> datetime | None:
    """Return an ISO time with its zone, UTC if it names none; None for any other value."""
    try:
        time = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
