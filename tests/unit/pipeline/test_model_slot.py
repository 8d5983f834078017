"""Which model answers a sample, and when one that was replaced is closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from halimede.frames import new_id
from halimede.inference import Array, SampleError
from halimede.messages import Frame, Prediction
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from tests.simulated import eventually
from tests.unit.frames.clouds import BAD, Brightness, frame
from tests.unit.pipeline.answering import Answering, answering
from tests.unit.pipeline.test_loaded_model import Ours, short


class Noted(Brightness):
    """Notes that it was closed, and waits in its thread until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self.broken = self.blind = False
        self.gate = threading.Event()
        self.gate.set()

    def prepare(self, image: Array) -> Array:
        if self.blind:
            raise SampleError("it wants another shape")
        return super().prepare(image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        assert self.gate.wait(20)
        if self.broken:
            raise RuntimeError("it fails at everything")
        return super().predict(batch)

    def close(self) -> None:
        self.closed += 1


@contextlib.asynccontextmanager
async def opened(version: str) -> AsyncIterator[tuple[LoadedModel, Noted]]:
    model = Noted()
    async with ModelThread() as thread:
        yield LoadedModel(model, thread, version), model


async def found(pipeline: Answering, frames: Sequence[Frame]) -> list[tuple[Prediction | None, str]]:
    """Return the predictions of frames, in order, and the versions of the models that made them."""
    return [(each.outcome.prediction, sample.version) for sample, each in await pipeline.answer(frames)]


async def test_every_sample_goes_to_the_model_in_use_and_from_the_swap_on_to_the_next() -> None:
    async with opened("1") as (old, _), opened("2") as (new, _):
        slot = ModelSlot(old)
        async with answering(slot) as pipeline:
            before = await found(pipeline, [frame(i) for i in range(5)])
            slot.replace(new)
            after = await found(pipeline, [frame(i) for i in range(5)])
        assert ({version for _, version in before}, {version for _, version in after}) == ({"1"}, {"2"})
        assert pipeline.calls == 2
        assert (old.answered, new.answered, old.calls.count) == (5, 5, 1)


async def test_a_replaced_model_is_closed_after_its_last_answer_and_once() -> None:
    async with opened("1") as (old, model), opened("2") as (new, _):
        slot = ModelSlot(old)
        model.gate.clear()
        async with answering(slot) as pipeline:
            asking = asyncio.create_task(found(pipeline, [frame(1)]))
            await asyncio.sleep(0.1)
            slot.replace(new)
            await asyncio.sleep(0.2)
            assert (model.closed, old in slot.loaded) == (0, True)
            model.gate.set()
            assert (await asking)[0][1] == "1"
        await eventually(lambda: old not in slot.loaded)
        await slot.close()
        assert model.closed == 1


async def test_a_replaced_model_waits_for_samples_that_are_its_own_and_not_in_its_thread_yet() -> None:
    async with opened("1") as (old, model), opened("2") as (new, _):
        slot = ModelSlot(old)
        old.hold()
        old.hold()
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
        slot = ModelSlot(old)
        slot.try_out(new, percent)
        ids = [new_id() for _ in range(4000)]
        chosen = [slot.choose(id_) for id_ in ids]
        assert abs(chosen.count(new) - 40 * percent) <= (0 if percent in {0, 100} else 200)
        assert chosen == [slot.choose(id_) for id_ in ids]


async def test_a_mixed_batch_is_answered_in_order_and_each_sample_by_its_own_model() -> None:
    async with opened("1") as (old, _), opened("2") as (new, _):
        slot = ModelSlot(old)
        slot.try_out(new, 50)
        frames = [frame(i) for i in range(40)]
        async with answering(slot) as pipeline:
            answered = await found(pipeline, frames)
        assert [prediction and prediction.label for prediction, _ in answered] == [str(i) for i in range(40)]
        assert [version for _, version in answered] == [slot.choose(each.id).version for each in frames]
        assert (pipeline.calls, old.answered + new.answered) == (2, 40)


async def test_a_new_model_that_proved_itself_takes_over_and_one_that_is_given_up_is_closed() -> None:
    async with opened("1") as (old, first), opened("2") as (new, second), opened("3") as (newer, third):
        slot = ModelSlot(old)
        slot.try_out(newer, 10)
        slot.try_out(new, 10)
        await eventually(lambda: third.closed == 1)
        slot.replace(new)
        await eventually(lambda: first.closed == 1)
        assert (slot.current, slot.rollout.canary, second.closed) == (new, None, 0)


@pytest.mark.parametrize("blind", [False, True])
async def test_a_canary_that_fails_is_withdrawn_and_what_it_failed_at_is_answered_by_the_other(*, blind: bool) -> None:
    async with opened("1") as (old, first), opened("2") as (new, second):
        slot, said = ModelSlot(old), list[str]()
        slot.try_out(new, 100, lambda: said.append(slot.rollout.message))
        second.broken, second.blind = True, blind
        async with answering(slot) as pipeline:
            for i in range(2):
                assert await found(pipeline, [frame(i)]) == [(Prediction(label=str(i), score=1.0), "1")]
            assert (slot.rollout.canary, said) == (new, [])
            calls = pipeline.calls
            answered = await found(pipeline, [frame(i) for i in range(4)])
            assert pipeline.calls > calls
        assert [prediction and prediction.label for prediction, _ in answered] == ["0", "1", "2", "3"]
        assert {version for _, version in answered} == {"1"}
        assert (slot.rollout.canary, slot.choose(new_id()), len(said)) == (None, old, 1)
        assert ("another shape" if blind else "at everything") in said[0]
        assert (new.failed, old.answered, old.failed) == (6, 6, 0)
        await eventually(lambda: second.closed == 1)
        assert first.closed == 0


async def test_samples_that_both_fail_at_are_no_strikes_nor_are_those_of_a_model_in_use() -> None:
    async with opened("1") as (old, _), opened("2") as (new, second):
        slot, said = ModelSlot(old), list[str]()
        slot.try_out(new, 100, lambda: said.append(slot.rollout.message))
        async with answering(slot) as pipeline:
            for _ in range(6):
                assert await found(pipeline, [frame(BAD)]) == [(None, "2")]
            assert (slot.rollout.canary, said, slot.rollout.strikes) == (new, [], 0)
            slot.replace(new)
            second.broken = True
            for _ in range(6):
                assert await found(pipeline, [frame(1)]) == [(None, "2")]
        assert (slot.current, said) == (new, [])


async def test_a_sample_under_way_in_a_canary_that_is_given_up_is_answered_all_the_same() -> None:
    async with opened("1") as (old, _), opened("2") as (new, second):
        slot, said = ModelSlot(old), list[str]()
        slot.try_out(new, 100, lambda: said.append(slot.rollout.message))
        second.broken = True
        second.gate.clear()
        async with answering(slot) as pipeline, asyncio.TaskGroup() as group:
            asking = group.create_task(found(pipeline, [frame(7) for _ in range(5)]))
            await asyncio.sleep(0.1)
            slot.try_out(None, 0)
            second.gate.set()
        assert {(prediction and prediction.label, by) for prediction, by in asking.result()} == {("7", "1")}
        assert said == []


async def test_once_it_has_taken_over_a_models_failures_are_its_own_also_when_the_next_one_has() -> None:
    async with opened("1") as (old, _), opened("2") as (new, second), opened("3") as (newer, _):
        slot = ModelSlot(old)
        slot.try_out(new, 100)
        slot.replace(new)
        second.broken = True
        second.gate.clear()
        async with answering(slot) as pipeline:
            asking = asyncio.create_task(found(pipeline, [frame(7)]))
            await asyncio.sleep(0.1)
            slot.replace(newer)
            second.gate.set()
            assert await asking == [(None, "2")]
        assert newer.answered == 0


async def test_while_a_canary_is_tried_samples_are_not_for_the_event_loop() -> None:
    async with ModelThread() as thread, opened("2") as (new, _):
        old = LoadedModel(Ours(), thread, "1")
        old.inline_policy = short()
        slot = ModelSlot(old)
        slot.guarded = True
        assert slot.inline_samples > 0
        slot.try_out(new, 10)
        assert slot.inline_samples == 0
        slot.try_out(None, 0)
        assert slot.inline_samples > 0
