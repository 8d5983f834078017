"""What happens again and again is reported now and then, with its count."""

from __future__ import annotations

import asyncio

import pytest

from services.gm.rate_limit import EVENTS_ABOUT, EVENTS_OF, MAX_SUPPRESSED, MOST_NAMES, EventDeduplicator, RateLimit

pytestmark = pytest.mark.simulated


async def test_one_event_over_and_over_is_left_out_and_counted_with_the_next() -> None:
    events, (rate, burst) = EventDeduplicator(), EVENTS_ABOUT
    counts = [events.times("DeadLetter", "client/edge0") for _ in range(100)]
    assert counts == [1] * int(burst) + [0] * (100 - int(burst))
    assert events.times("DeadLetter", "client/edge1") == 1
    await asyncio.sleep(1 / rate)
    assert events.times("DeadLetter", "client/edge0") == 1 + 100 - burst


async def test_one_reason_about_ever_new_things_is_left_out_in_bounds() -> None:
    events, burst = EventDeduplicator(), int(EVENTS_OF[1])
    counts = [events.times("NodeFlood", f"node/{number}") for number in range(burst + 2 * MAX_SUPPRESSED)]
    assert counts == [1] * burst + [0] * 2 * MAX_SUPPRESSED
    assert len(events._suppressed) == MAX_SUPPRESSED
    assert events.times("NoPlacement", "node/1") == 1


async def test_a_name_that_floods_gets_no_new_burst_because_many_other_names_come() -> None:
    limit: RateLimit[str] = RateLimit(0.001, 2.0)
    for number in range(MOST_NAMES + 1):
        limit.spend("flood")
        limit.spend(f"other {number}")
    assert not limit.spend("flood")
