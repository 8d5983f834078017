"""Which model answers a sample, and when one that was replaced is closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from halimede.frames import new_id
from halimede.frames.compute import ModelThread
from halimede.frames.slot import Loaded, Slot
from halimede.inference import Array
from halimede.messages import Prediction
from tests.simulated import eventually
from tests.unit.frames.clouds import Brightness, frame


class Noted(Brightness):
    """Notes that it was closed, and waits in its thread until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self.gate = threading.Event()
        self.gate.set()

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        assert self.gate.wait(20)
        return super().predict(batch)

    def close(self) -> None:
        self.closed += 1


@contextlib.asynccontextmanager
async def opened(version: str) -> AsyncIterator[tuple[Loaded, Noted]]:
    model = Noted()
    async with ModelThread() as thread:
        yield Loaded(model, thread, version), model


async def test_every_sample_goes_to_the_model_in_use_and_from_the_swap_on_to_the_next() -> None:
    async with opened("1") as (old, _), opened("2") as (new, _):
        slot = Slot(old)
        before, _ = await slot.answer([frame(i) for i in range(5)], 8)
        slot.replace(new)
        after, calls = await slot.answer([frame(i) for i in range(5)], 8)
        assert ({version for _, version in before}, {version for _, version in after}, calls) == ({"1"}, {"2"}, 1)
        assert (old.answered, new.answered, old.calls.count) == (5, 5, 1)


async def test_a_replaced_model_is_closed_after_its_last_answer_and_once() -> None:
    async with opened("1") as (old, model), opened("2") as (new, _):
        slot = Slot(old)
        model.gate.clear()
        asking = asyncio.create_task(slot.answer([frame(1)], 8))
        await asyncio.sleep(0.1)
        slot.replace(new)
        await asyncio.sleep(0.2)
        assert (model.closed, old in slot.loaded) == (0, True)
        model.gate.set()
        answered, _ = await asking
        assert answered[0][1] == "1"
        await eventually(lambda: old not in slot.loaded)
        await slot.close()
        assert model.closed == 1


async def test_a_replaced_model_waits_for_samples_that_are_its_own_and_not_in_its_thread_yet() -> None:
    async with opened("1") as (old, model), opened("2") as (new, _):
        slot = Slot(old)
        old.hold(2)
        slot.replace(new)
        await asyncio.sleep(0.1)
        old.release()
        await asyncio.sleep(0.1)
        assert model.closed == 0
        old.release()
        await eventually(lambda: model.closed == 1)


@pytest.mark.parametrize("percent", [0, 10, 50, 100])
async def test_a_share_of_the_samples_goes_to_a_new_model_and_the_same_ones_each_time(percent: int) -> None:
    async with opened("1") as (old, _), opened("2") as (new, _):
        slot = Slot(old)
        slot.try_out(new, percent)
        ids = [new_id() for _ in range(4000)]
        chosen = [slot.choose(id_) for id_ in ids]
        assert abs(chosen.count(new) - 40 * percent) <= (0 if percent in {0, 100} else 200)
        assert chosen == [slot.choose(id_) for id_ in ids]


async def test_a_mixed_batch_is_answered_in_order_and_each_sample_by_its_own_model() -> None:
    async with opened("1") as (old, _), opened("2") as (new, _):
        slot = Slot(old)
        slot.try_out(new, 50)
        frames = [frame(i) for i in range(40)]
        answered, calls = await slot.answer(frames, 64)
        assert [outcome.prediction and outcome.prediction.label for outcome, _ in answered] == [
            str(i) for i in range(40)
        ]
        assert [version for _, version in answered] == [slot.choose(each.id).version for each in frames]
        assert (calls, old.answered + new.answered) == (2, 40)


async def test_a_new_model_that_proved_itself_takes_over_and_one_that_is_given_up_is_closed() -> None:
    async with opened("1") as (old, first), opened("2") as (new, second), opened("3") as (newer, third):
        slot = Slot(old)
        slot.try_out(newer, 10)
        slot.try_out(new, 10)
        await eventually(lambda: third.closed == 1)
        slot.replace(new)
        await eventually(lambda: first.closed == 1)
        assert (slot.current, slot.canary, second.closed) == (new, None, 0)
