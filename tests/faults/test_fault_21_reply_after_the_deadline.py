"""Fault 21: the cloud's reply comes after the sample's deadline. It is counted as late, and not emitted."""

from __future__ import annotations

import asyncio

import pytest

from tests.digits import ALL_HARD, Digits, slow
from tests.integration.workers import Site
from tests.requester import answered_once
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
async def test_fault_21_a_late_reply_is_counted_and_its_frame_has_one_result(s: Site, digits: Digits) -> None:
    s.start_script("cloud", s.cloud, slow(1.5))
    s.start("edge", s.edge, digits.small, **ALL_HARD, DEADLINE_MS="400")
    await s.running(s.cloud, s.edge)
    await s.send_all(digits.pictures[:5], fps=50)
    # the first one kept the model busy, and the others no longer had the time: all are the edge's own
    assert {(r.by, r.degraded) for r in s.results.values()} == {("edge", True)}
    assert set(s.reasons()) <= {"deadline", "shed", "circuit-open"}
    await eventually(lambda: s.counts(s.edge).late >= 1, 30)
    await asyncio.sleep(0.5)
    answered_once(s)
    counts = s.counts(s.edge)
    assert (counts.cloud_inference_number, counts.inference_number, counts.unasked) == (0, 5, 0)
    assert counts.degraded == 5
