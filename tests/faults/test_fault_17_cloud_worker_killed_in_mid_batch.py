"""Fault 17: kill -9 of a cloud worker in mid-batch. The edge sends again or falls back; one result for every frame."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.digits import ALL_HARD, Digits, noting
from tests.integration.workers import Site, Worker
from tests.requester import answered_once
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)

#: seconds of a batch; the worker that is killed is within its first one until then
BATCH_S, HELD_S = 2.0, 3600.0
#: a sample waits for a second one, also where they come slowly
PAIRS = {"MAX_BATCH_SIZE": "2", "MAX_QUEUE_DELAY_MS": "1000"}


async def kill_in_mid_batch(worker: Worker, notes: Path) -> None:
    """Kill a worker while its model has more than one sample."""

    await eventually(lambda: notes.exists() and "begin 2\n" in notes.read_text(), 30)
    worker.kill()


@pytest.mark.slow
async def test_fault_17_with_another_worker_what_the_dead_one_had_is_sent_again(s: Site, digits: Digits) -> None:
    notes = s.folder / "notes"
    first = s.start_script("cloud", f"{s.cloud}0", noting(HELD_S, notes), **PAIRS)
    s.start_script("cloud", f"{s.cloud}1", noting(BATCH_S, s.folder / "others"))
    s.start("edge", s.edge, digits.small, **ALL_HARD, DEADLINE_MS="60000")
    await s.running(f"{s.cloud}0", f"{s.cloud}1", s.edge)
    sending = asyncio.create_task(s.send(digits.pictures[:24], fps=300))  # faster than two can take them singly
    await kill_in_mid_batch(first, notes)
    await sending
    await s.answered(90)
    answered_once(s)
    assert s.reasons() == {}
    assert {r.by for r in s.results.values()} == {"cloud"}
    # no answer of the dead one's last batch ever came: the other one gave it
    assert sum(r.worker == f"{s.cloud}1" for r in s.results.values()) >= 2
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))
    assert s.counts(s.edge).lost == 0


async def test_fault_17_without_another_worker_the_edge_falls_back(s: Site, digits: Digits) -> None:
    notes = s.folder / "notes"
    only = s.start_script("cloud", f"{s.cloud}0", noting(HELD_S, notes), **PAIRS)
    s.start("edge", s.edge, digits.small, **ALL_HARD, DEADLINE_MS="10000")
    await s.running(f"{s.cloud}0", s.edge)
    sending = asyncio.create_task(s.send(digits.pictures[:24], fps=40))
    await kill_in_mid_batch(only, notes)
    await sending
    await s.answered(60)
    answered_once(s)
    assert set(s.reasons()) <= {"no-cloud", "circuit-open", "deadline"}
    assert sum(s.reasons().values()) + len(s.by("cloud")) == len(s.sent)
    assert sum(s.reasons().values()) >= 2
    await eventually(lambda: s.counts(s.edge).degraded == sum(s.reasons().values()))
    assert (s.counts(s.edge).lost, s.counts(s.edge).unasked) == (0, 0)
