"""Events have two faces, core/v1 and events.k8s.io/v1, over one storage."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
#: events.k8s.io/v1 -> core/v1
_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: new for new, core in _NAMES.items()}


def to_core(body: Body) -> Body:
    """Return an events.k8s.io event as it is kept."""
    kept = {_NAMES.get(name, name): value for name, value in body.items()}
    return {**kept, "apiVersion": "v1", "kind": "Event"}


def from_core(body: Body) -> Body:
    """Return a kept event in its newer form."""
    shown = {_BACK.get(name, name): value for name, value in body.items()}
    return {**shown, "apiVersion": "events.k8s.io/v1", "kind": "Event"}
