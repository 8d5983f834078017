"""Where a frame's trace comes from and goes to: W3C Trace Context as MQTT user properties, read and written.

Pure, and wary: the properties were written by whoever may publish. What is malformed counts as absent, whatever comes
in is looked at within bounds, and nothing of it is kept but four small values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED = 0x01
#: user properties that are looked at; more of them are somebody's mistake or attack
MOST_PROPERTIES = 32
#: bounds of a tracestate (W3C Trace Context, 3.3.1): characters that all must pass on, and list members
MOST_STATE, MOST_MEMBERS = 512, 32

#: version 00 in full; of later versions the part that they promise to keep
_parent = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_member = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_PARENT_CHARS = 55
MOST_PARENT = 256


class TraceContext(NamedTuple):
    """A place in a trace: the trace, the span that what comes next is a child of, and what to pass on unseen."""

    trace: int
    span: int
    sampled: bool = True
    state: str = ""


def trace_of(frame_id: bytes) -> int:
    """Return the trace of a frame that came without one: its own id. No trace has the id 0."""
    return int.from_bytes(frame_id) or 1


def read(properties: Sequence[tuple[str, str]]) -> TraceContext | None:
    """Return what the user properties of a message say, None without a valid ``traceparent`` (or with several)."""
    if not properties:
        return None
    near = properties[:MOST_PROPERTIES]
    parents = [value for key, value in near if key == TRACEPARENT]
    if len(parents) != 1:
        return None
    return parse(parents[0], ",".join(v[: MOST_STATE + 1] for key, v in near if key == TRACESTATE))


def parse(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Read both values. An invalid ``tracestate`` is left out; without a valid ``traceparent`` there is no context."""
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
    """Return a valid tracestate as it is to be passed on, else nothing."""
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
