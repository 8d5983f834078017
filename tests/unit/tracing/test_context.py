"""A trace context is read back as it was written; anything else that a message carries is ignored, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.tracing.context import (
    MAX_PROPERTIES,
    MAX_STATE,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    parse,
    read,
    trace_of,
    write,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"

PROPERTY_KEYS = st.sampled_from([TRACEPARENT, TRACESTATE, "Traceparent", "epoch", ""]) | st.text(max_size=8)
PROPERTY_VALUES = st.sampled_from([GOOD, GOOD.upper(), "0" * 55, "a=b", ",", "=" * 600]) | st.text(max_size=80)
keys = st.from_regex(r"[a-z0-9][a-z0-9_\-*/@]{0,20}", fullmatch=True)
values = st.from_regex(r"[!-+\--<>-~]{1,20}", fullmatch=True)
states = st.dictionaries(keys, values, max_size=8).map(lambda d: ",".join(f"{k}={v}" for k, v in d.items()))
contexts = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    states.filter(lambda s: len(s) < 512),
)


@given(contexts)
def test_what_is_written_is_read_back(context: TraceContext) -> None:
    assert read(tuple(write(context).items())) == context


@given(st.lists(st.tuples(PROPERTY_KEYS, PROPERTY_VALUES), max_size=40))
def test_any_properties_give_a_context_or_none(properties: list[tuple[str, str]]) -> None:
    context = read(properties)
    if context is not None:
        assert 0 < context.trace < 2**128
        assert 0 < context.span < 2**64
        assert len(context.state) <= MAX_STATE
        assert read(list(write(context).items())) == context


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=600)), max_size=50))
def test_other_properties_say_nothing(properties: list[tuple[str, str]]) -> None:
    assert read([pair for pair in properties if pair[0] != "traceparent"]) is None


@given(st.text(max_size=300), st.text(max_size=600))
def test_any_text_is_read_or_ignored_and_nothing_large_is_kept(parent: str, state: str) -> None:
    context = parse(parent, state)
    assert context is None or (context.trace and context.span and len(context.state) <= MAX_STATE)
    known = parse(GOOD, state)
    assert len(known.state) <= MAX_STATE
    assert known.state.isascii()


@given(st.integers(0, len(GOOD) - 1), st.characters(exclude_characters="0123456789abcdef-"))
def test_one_wrong_character_makes_it_invalid(at: int, wrong: str) -> None:
    assert parse(GOOD[:at] + wrong + GOOD[at + 1 :]) is None


@pytest.mark.parametrize(
    "bad",
    [
        "",
        GOOD.upper(),
        f"{GOOD} ",
        f"{GOOD}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"cc-{TRACE}-{SPAN}-01more",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 65_000}",
        GOOD.replace("-", "_"),
    ],
)
def test_a_malformed_traceparent_counts_as_none(bad: str) -> None:
    assert parse(bad) is None


def test_only_the_sampled_flag_is_taken() -> None:
    for flags, sampled in (("00", False), ("01", True), ("02", False), ("ff", True)):
        context = parse(f"00-{TRACE}-{SPAN}-{flags}")
        assert context.sampled is sampled
        assert write(context)["traceparent"].endswith("-01" if sampled else "-00")


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == TraceContext(int(TRACE, 16), int(SPAN, 16))


def test_two_contexts_are_none() -> None:
    assert read([("traceparent", GOOD)]) is not None
    assert read([("traceparent", GOOD), ("traceparent", GOOD)]) is None


def test_properties_are_looked_at_within_bounds() -> None:
    many = [(f"k{n}", "v") for n in range(10_000)]
    assert read([*many[: MAX_PROPERTIES - 1], ("traceparent", GOOD)]) is not None
    assert read([*many, ("traceparent", GOOD)]) is None
    context = read([("traceparent", GOOD), *(("tracestate", "a=" + "x" * 65_000) for _ in range(20))])
    assert not context.state


@pytest.mark.parametrize(
    "bad",
    [
        "a",
        "a=",
        "=b",
        "A=b",
        "a=b,a=c",
        "a=b,c",
        "a=\n",
        ",".join(f"k{n}=v" for n in range(33)),
        ",".join(f"k{n}={'v' * 100}" for n in range(6)),
    ],
)
def test_an_invalid_tracestate_is_left_out(bad: str) -> None:
    assert parse(GOOD, bad) == TraceContext(int(TRACE, 16), int(SPAN, 16))


def test_a_tracestate_of_several_properties_is_put_together() -> None:
    assert read([("traceparent", GOOD), ("tracestate", "a=1 , b=2"), ("tracestate", "c=3")]).state == "a=1,b=2,c=3"


def test_a_frame_id_is_a_trace_but_for_0() -> None:
    assert trace_of(bytes.fromhex(TRACE)) == int(TRACE, 16)
    assert trace_of(bytes(16)) == 1
