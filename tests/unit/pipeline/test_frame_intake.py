"""A frame that a model on trial cannot read goes to the model before it, if that can."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import DecodeError
from halimede.frames import pack
from halimede.inference import Array, SampleError
from halimede.messages import Count, Frame
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import EdgeLimits, FrameIntake
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.sample import Sample
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from halimede.tracing import TraceBuffer
from tests.simulated import eventually
from tests.unit.frames.clouds import NS, SERVICE, Brightness, frame


class Blind(Brightness):
    """Reads no frame."""

    def prepare(self, image: Array) -> Array:
        raise SampleError(f"it wants another shape than {image.shape}")


def sample_of(body: Frame, intake: FrameIntake) -> Sample:
    return Sample(body, intake, TraceBuffer().begin(body.id), 0.0, math.inf, 0.0, pixels=body.data.nbytes)


@contextlib.asynccontextmanager
async def trial(folder: Path) -> AsyncIterator[tuple[FrameIntake, ModelSlot, list[str]]]:
    """An intake before a slot whose canary is blind, and what is said when it is withdrawn."""
    said: list[str] = []
    with Ledger(folder, "u-1") as ledger:
        async with MemoryBus("edge", MemoryBroker()) as bus, ModelThread() as thread:
            slot = ModelSlot(LoadedModel(Brightness(), thread, "1"))
            slot.try_out(LoadedModel(Blind(), thread, "2"), 100, lambda: said.append(slot.rollout.message))
            address = topics.RESULT.at(ns=NS, service=SERVICE)
            responder = ResultResponder(Origin(SERVICE, "e0", "node-e0"), result_outbox(bus), address, ledger)
            worker = EdgeWorker(slot, responder, ledger, thread, limits=EdgeLimits(pixels=1024))
            yield worker.intake, slot, said


async def test_a_frame_that_a_canary_cannot_read_is_the_others_and_the_canary_is_withdrawn(tmp_path: Path) -> None:
    async with trial(tmp_path) as (intake, slot, said):
        canary = slot.rollout.canary
        for i in range(3):
            assert slot.rollout.canary is canary
            sample = sample_of(frame(i), intake)
            await intake.prepare(sample)
            assert sample.input is not None
            assert (sample.model, int(sample.input.flat[0])) == (slot.current, i)
        assert slot.rollout.canary is None
        assert len(said) == 1
        assert "another shape" in said[0]


async def test_a_frame_that_neither_can_read_is_refused_and_no_strike(tmp_path: Path) -> None:
    async with trial(tmp_path) as (intake, slot, said):
        canary = slot.rollout.canary
        for _ in range(5):
            with pytest.raises(DecodeError):
                await intake.prepare(sample_of(frame(1, (2, 2, 3)), intake))
        assert (slot.rollout.canary, said) == (canary, [])


class Counting(Brightness):
    """Counts the frames that it reads."""

    read = 0

    def prepare(self, image: Array) -> Array:
        Counting.read += 1
        return super().prepare(image)


async def test_a_frame_that_waited_too_long_for_a_place_is_acknowledged_counted_and_not_decoded(tmp_path: Path) -> None:
    loop, acknowledged = asyncio.get_running_loop(), list[int]()
    with Ledger(tmp_path, "u-1") as ledger:
        async with MemoryBus("edge", MemoryBroker()) as bus, ModelThread() as thread, asyncio.TaskGroup() as group:
            slot = ModelSlot(LoadedModel(Counting(), thread, "1"))
            address = topics.RESULT.at(ns=NS, service=SERVICE)
            responder = ResultResponder(Origin(SERVICE, "e0", "node-e0"), result_outbox(bus), address, ledger)
            worker = EdgeWorker(slot, responder, ledger, thread, limits=EdgeLimits(inside=2, max_age_s=0.1))
            offers = [
                group.create_task(
                    worker.intake.offer(
                        pack(frame(number)),
                        "cam0",
                        answered=partial(acknowledged.append, number),
                        arrived=loop.time() if number else math.inf,
                    )
                )
                for number in range(5)
            ]
            await eventually(lambda: all(offer.done() for offer in offers[:2]))
            assert Counting.read == 2
            await asyncio.sleep(0.15)
            running = group.create_task(worker.run())
            await eventually(lambda: len(acknowledged) == 5)
            # the first one has no age; those that waited for a place were not read
            assert sorted(acknowledged) == list(range(5))
            assert Counting.read == 2
            assert (ledger[Count.SKIPPED], ledger[Count.ACCEPTED], ledger[Count.ANSWERED]) == (4, 1, 1)
            assert (worker.pipeline.inside, worker.pipeline.preparing) == (0, 0)
            running.cancel()
