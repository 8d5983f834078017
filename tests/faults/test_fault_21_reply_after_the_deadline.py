"""Fault 21: the cloud's reply comes after the sample's deadline. It is counted as late, and not emitted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.broker import MosquittoProcess
from tests.digits import ALL_HARD, Digits, slow
from tests.integration.workers import site
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
async def test_fault_21_a_late_reply_is_counted_and_its_frame_has_one_result(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, digits: Digits
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start_script("cloud", f"{unique}-c", slow(1.5))
        s.start("edge", f"{unique}-e", digits.small, **ALL_HARD, DEADLINE_MS="400")
        await s.running(f"{unique}-c", f"{unique}-e")
        await s.send(digits.pictures[:5], fps=50)
        await s.answered()
        # the first one kept the model busy, and the others no longer had the time: all are the edge's own
        assert {(r.by, r.degraded) for r in s.results.values()} == {("edge", True)}
        assert set(s.reasons()) <= {"deadline", "shed", "circuit-open"}
        await eventually(lambda: s.counts(f"{unique}-e").late >= 1, 30)
        await asyncio.sleep(0.5)
        assert set(s.results) == set(s.sent)
        assert set(s.copies.values()) == {1}
        counts = s.counts(f"{unique}-e")
        assert (counts.cloud_inference_number, counts.inference_number, counts.unasked) == (0, 5, 0)
        assert counts.degraded == 5
