"""Fault 19: no cloud worker at all. The circuit opens, the edge answers and says why; one appears, and it closes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.digits import ALL_HARD, Digits
from tests.integration.workers import Site
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)

FRAMES = 60
WITHOUT = {"no-cloud", "circuit-open"}


async def send(s: Site, digits: Digits, count: int = FRAMES) -> Counter[str]:
    """Send frames, wait for their answers, and return the reasons of these; "" for the cloud's answers."""
    before = set(s.results)
    await s.send_all(digits.pictures[:count], fps=60)
    new = [result for id_, result in s.results.items() if id_ not in before]
    assert len(new) == count
    assert all(result.hard and result.degraded == (result.by == "edge") for result in new)
    return Counter(result.reason for result in new)


@pytest.mark.slow
async def test_fault_19_the_circuit_opens_without_a_cloud_and_closes_with_one_twice(s: Site, digits: Digits) -> None:
    await s.run_edge(digits.small, **ALL_HARD)
    degraded = 0
    for turn in range(2):
        reasons = await send(s, digits)
        assert set(reasons) == WITHOUT
        # one is asked to find out, and a probe now and then: the others are not held up
        assert reasons["circuit-open"] > reasons["no-cloud"]
        degraded += FRAMES
        cloud = s.start("cloud", f"{s.cloud}{turn}", digits.big)
        await s.running(f"{s.cloud}{turn}")
        assert await send(s, digits) == {"": FRAMES}
        cloud.kill()
    assert set(s.copies.values()) == {1}
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))
    counts = s.counts(s.edge)
    assert (counts.degraded, counts.cloud_inference_number, counts.lost) == (degraded, 2 * FRAMES, 0)
    # what nobody was there for did not go up
    assert counts.upload_cloud_ratio == 0.5
