"""Fault 18: a cloud worker ten times slower. Its queue is bounded, nothing is computed too late, the edge sheds."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import numpy as np
import psutil
import pytest

from halimede.frames import new_frame
from tests.digits import ALL_HARD, Digits, slow
from tests.faults.picture_folder import noise
from tests.integration.workers import Site, Worker
from tests.requester import Requester
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FAST_S, SLOW_S = 0.02, 0.2
MIB = 1024 * 1024


def memory(worker: Worker) -> int:
    return int(psutil.Process(worker.process.pid).memory_info().rss)


async def test_fault_18_the_edge_sheds_and_its_memory_stays(s: Site, digits: Digits) -> None:
    cloud = s.start_script("cloud", s.cloud, slow(SLOW_S))
    edge = s.start("edge", s.edge, digits.small, **ALL_HARD, DEADLINE_MS="1500")
    await s.running(s.cloud, s.edge)
    pictures = [noise(256)] * 100
    await s.send_all(pictures, fps=100)
    before = memory(edge), memory(cloud)
    for _ in range(4):
        await s.send(pictures, fps=100)
    await s.answered()
    assert set(s.copies.values()) == {1}
    # 400 pictures of 64 KiB went through: kept, they would be 25 MiB, decoded and queued more
    assert max(memory(edge) - before[0], memory(cloud) - before[1]) < 20 * MIB
    assert len(s.by("cloud")) >= 10, "in five seconds it can answer 25"
    assert set(s.reasons()) <= {"shed", "window-full", "deadline", "too-slow"}
    kept_back = sum(s.reasons()[reason] for reason in ("shed", "window-full", "too-slow"))
    assert kept_back > s.reasons()["deadline"]
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))
    assert s.counts(s.edge).degraded == sum(s.reasons().values())


async def test_fault_18_a_worker_that_is_flooded_refuses_drops_what_expired_and_goes_on(s: Site) -> None:
    await s.run_script("cloud", slow(SLOW_S))
    requester = await Requester(s).listen()

    def replies() -> Counter[str]:
        return Counter(requester.read(lambda reply: reply.error or "answered"))

    async def ask(deadline_ms: float) -> None:
        frame = msgspec.structs.replace(new_frame(np.zeros((8, 8), np.uint8)), deadline_ms=deadline_ms)
        await requester.send(frame, s.cloud)

    await asyncio.gather(*(ask(1000) for _ in range(200)))
    # it takes one at a time, at most 64 wait, and those that wait too long cost the model nothing
    await eventually(lambda: replies()["overloaded"] >= 200 - 64 - 20, 30)
    await ask(60_000)
    await eventually(lambda: replies()["answered"] >= 2, 30)
    await eventually(lambda: s.counts(s.cloud).served == replies()["answered"], 30)
    assert replies()["answered"] <= 20
    assert set(replies()) <= {"answered", "overloaded", "expired"}
    assert replies().total() < 201, "what expired while it waited is not answered: nobody waits for it"
