"""Propagates the traces of frames: reads and writes W3C Trace Context as MQTT user properties.

Pure, and defensive: any publisher can write the properties. Malformed ones count as absent, received ones are parsed
within bounds, and only four small values are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED = 0x01
#: most user properties that are read; more are a mistake or an attack
MOST_PROPERTIES = 32
#: limits of a tracestate (W3C Trace Context, 3.3.1): characters that all must pass on, and list members
MOST_STATE, MOST_MEMBERS = 512, 32

#: version 00 in full; for later versions the part that they guarantee
_parent = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_member = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_PARENT_CHARS = 55
MOST_PARENT = 256


class TraceContext(NamedTuple):
    """A position in a trace: the trace, the parent span of the next step, and the state to pass on unchanged."""

    trace: int
    span: int
    sampled: bool = True
    state: str = ""


def trace_of(frame_id: bytes) -> int:
    """Return the trace of a frame without one: its own id. No trace has the id 0."""
    return int.from_bytes(frame_id) or 1


def read(properties: Sequence[tuple[str, str]]) -> TraceContext | None:
    """Return the context in a message's user properties, None without exactly one valid ``traceparent``."""
    if not properties:
        return None
    near = properties[:MOST_PROPERTIES]
    parents = [value for key, value in near if key == TRACEPARENT]
    if len(parents) != 1:
        return None
    return parse(parents[0], ",".join(v[: MOST_STATE + 1] for key, v in near if key == TRACESTATE))


def parse(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Parse both values. An invalid ``tracestate`` is dropped; without a valid ``traceparent`` there is no context."""
    if not _PARENT_CHARS <= len(traceparent) <= MOST_PARENT:
        return None
    found = _parent.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & SAMPLED), _state(tracestate))
    return context if context.trace and context.span else None


def _state(text: str) -> str:
    """Return a valid tracestate to pass on, else an empty text."""
    if not text or len(text) > MOST_STATE:
        return ""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    valid = len(keys) == len(members) <= MOST_MEMBERS and all(_member.fullmatch(member) for member in members)
    return ",".join(members) if valid else ""


def write(context: TraceContext) -> dict[str, str]:
    """Return the user properties that carry a context."""
    flags = SAMPLED if context.sampled else 0
    properties = {TRACEPARENT: f"00-{context.trace:032x}-{context.span:016x}-{flags:02x}"}
    if context.state:
        properties[TRACESTATE] = context.state
    return properties
