"""Propagates the traces of frames: reads and writes W3C Trace Context as MQTT user properties.

Any publisher can write the properties: so they are parsed within bounds, malformed ones count as absent, and only four
small values are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

#: names of the user properties
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
#: flag of a traceparent: the trace is exported
SAMPLED = 0x01
#: most user properties of a message that are read; more are a mistake or an attack
MAX_PROPERTIES = 32
#: most characters of a tracestate, and most members of its list (W3C Trace Context, 3.3.1)
MAX_STATE, MAX_MEMBERS = 512, 32

#: a traceparent: version 00 in full, of later versions the part that is the same in all
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
#: one member of a tracestate: key=value
_STATE_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
#: least and most characters of a traceparent that is parsed
MIN_PARENT, MAX_PARENT = 55, 256


class TraceContext(NamedTuple):
    """A position in a trace, as it travels with a frame.

    Attributes:
        trace: id of the trace, 128 bits, not 0.
        span: id of the span that is the parent of the next step, 64 bits, not 0.
        sampled: the trace is exported.
        state: the ``tracestate`` to pass on unchanged; empty: none.

    """

    trace: int
    span: int
    sampled: bool = True
    state: str = ""


def trace_of(frame_id: bytes) -> int:
    """Return the trace id of a frame that came without a trace: the frame's own id (16 bytes), or 1 if that is 0."""
    return int.from_bytes(frame_id) or 1


def read(properties: Sequence[tuple[str, str]]) -> TraceContext | None:
    """Return the context in a message's user properties; None unless they have one ``traceparent``.

    Only the first MAX_PROPERTIES count. The traceparent must be valid.
    """
    if not properties:
        return None
    first_properties = properties[:MAX_PROPERTIES]
    parents = [value for key, value in first_properties if key == TRACEPARENT]
    if len(parents) != 1:
        return None
    states = (value[: MAX_STATE + 1] for key, value in first_properties if key == TRACESTATE)
    return parse(parents[0], ",".join(states))


def parse(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context of both values; None for an invalid ``traceparent``. An invalid ``tracestate`` is dropped."""
    if not MIN_PARENT <= len(traceparent) <= MAX_PARENT:
        return None
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace, span, flags, extension = match.groups()
    if version == "ff" or (version == "00" and extension is not None):
        return None
    context = TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & SAMPLED), _state(tracestate))
    return context if context.trace and context.span else None


def _state(text: str) -> str:
    """Return the members of a tracestate, separated by commas; empty if it is not valid."""
    if not text or len(text) > MAX_STATE:
        return ""
    members = [member for entry in text.split(",") if (member := entry.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    valid = len(keys) == len(members) <= MAX_MEMBERS and all(_STATE_MEMBER.fullmatch(member) for member in members)
    return ",".join(members) if valid else ""


def write(context: TraceContext) -> dict[str, str]:
    """Return the user properties that carry a context."""
    flags = SAMPLED if context.sampled else 0
    properties = {TRACEPARENT: f"00-{context.trace:032x}-{context.span:016x}-{flags:02x}"}
    if context.state:
        properties[TRACESTATE] = context.state
    return properties
