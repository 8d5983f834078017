"""Trace contexts come from whoever publishes: any properties give a context or none, and what is written is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halimede.tracing.context import MOST_STATE, TRACEPARENT, TRACESTATE, TraceContext, parse, read, write

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
keys = st.sampled_from([TRACEPARENT, TRACESTATE, "Traceparent", "epoch", ""]) | st.text(max_size=8)
values = st.sampled_from([PARENT, PARENT.upper(), "0" * 55, "a=b", ",", "=" * 600]) | st.text(max_size=80)
contexts = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.sampled_from(["", "a=b", "a=b,c=d"]),
)


@given(st.lists(st.tuples(keys, values), max_size=40))
def test_any_properties_give_a_context_or_none(properties: list[tuple[str, str]]) -> None:
    context = read(properties)
    if context is not None:
        assert 0 < context.trace < 2**128
        assert 0 < context.span < 2**64
        assert len(context.state) <= MOST_STATE
        assert read(list(write(context).items())) == context


@given(st.integers(0, len(PARENT) - 1), st.characters(), values)
def test_a_spoiled_traceparent_is_another_one_or_none(at: int, letter: str, state: str) -> None:
    context = parse(PARENT[:at] + letter + PARENT[at + 1 :], state)
    assert context is None or read(list(write(context).items())) == context


@given(contexts)
def test_a_context_that_is_written_is_read(context: TraceContext) -> None:
    assert read(list(write(context).items())) == context


def test_a_flood_of_properties_is_looked_at_within_bounds() -> None:
    assert read([("k", "v")] * 10_000 + [(TRACEPARENT, PARENT)]) is None
    assert read([(TRACEPARENT, PARENT)] * 10_000) is None
