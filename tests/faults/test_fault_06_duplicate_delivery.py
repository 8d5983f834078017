"""Fault 6: QoS 1 delivers twice. Frames are told apart by their id: one result, one model call, one count each."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.bus.memory import MemoryBroker
from halimede.errors import DisconnectedError
from tests.simulated import eventually
from tests.unit.worker.world import EASY, HARD, Big, Small, world

pytestmark = pytest.mark.simulated

FRAMES = 60


def counting(estimator: type[Any]) -> tuple[type[Any], list[int]]:
    """Return an estimator that notes what it was asked for."""
    asked: list[int] = []

    class Counting(estimator):  # type: ignore[misc]
        def predict(self, data: Any) -> Any:
            asked.append(int(np.asarray(data).flat[0]))
            return super().predict(data)

    return Counting, asked


async def test_fault_06_every_frame_delivered_twice_is_answered_once(tmp_path: Path) -> None:
    broker = MemoryBroker(seed=6)
    small, small_asked = counting(Small)
    big, big_asked = counting(Big)
    async with world(tmp_path, broker) as w, w.worker("cloud", "c0", big), w.worker("edge", "e0", small):
        broker.faults.duplicate = 1.0
        sent = []
        for i in range(FRAMES):
            sent.append(await w.send(HARD if i % 3 == 0 else EASY))
            await asyncio.sleep(0.02)
        await eventually(lambda: set(w.results) == set(sent))
        await eventually(lambda: w.info("e0").inference_number == FRAMES)
        assert (len(small_asked), len(big_asked)) == (FRAMES, FRAMES // 3)
        info = w.info("e0")
        assert (info.cloud_inference_number, info.hard_example_number) == (FRAMES // 3, FRAMES // 3)
        assert (info.lost, info.rejected, info.late, info.degraded) == (0, 0, 0, 0)


async def test_fault_06_lost_acknowledgements_make_repetitions_under_the_same_id_only(tmp_path: Path) -> None:
    broker = MemoryBroker(seed=7)
    async with world(tmp_path, broker) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", deadline_s=20.0):
        broker.faults.loss, broker.faults.duplicate = 0.1, 0.3
        sent = []
        while len(sent) < FRAMES:
            with contextlib.suppress(DisconnectedError):
                sent.append(await w.send(HARD if len(sent) % 3 == 0 else EASY))
            await asyncio.sleep(0.1)
        await eventually(lambda: set(sent) <= set(w.results), 120)
        broker.faults.loss = broker.faults.duplicate = 0.0
        await asyncio.sleep(30)
        # a frame whose publish was lost on the way back was taken all the same: it counts, too
        assert w.info("e0").inference_number == len(w.results)
        assert w.info("e0").lost == 0
