"""Which model answers a sample, and when one that was replaced is closed."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import AsyncIterator, Sequence

import pytest

from halimede.frames import new_id
from halimede.inference import Array, SampleError
from halimede.messages import Frame, Prediction
from halimede.pipeline.executor import InlinePolicy, ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from tests.simulated import eventually
from tests.unit.frames.clouds import BAD, frame
from tests.unit.pipeline.answering import Answering, Held, Ours, answering, short


class Noted(Held):
    """Notes how often it was closed, and waits in its thread only while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closes = 0
        self.broken = self.blind = False
        self.gate.set()

    def prepare(self, image: Array) -> Array:
        if self.blind:
            raise SampleError("it wants another shape")
        return super().prepare(image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        predictions = super().predict(batch)
        if self.broken:
            raise RuntimeError("it fails at everything")
        return predictions

    def close(self) -> None:
        self.closes += 1


class Rollout:
    """A slot with the ``old`` model in use, ``new`` ones, and what is said of a canary that is withdrawn."""

    def __init__(self, threads: Sequence[ModelThread]) -> None:
        self.models = [Noted() for _ in threads]
        self.old, self.new, self.newer = (
            LoadedModel(model, thread, str(number))
            for number, (model, thread) in enumerate(zip(self.models, threads, strict=True), start=1)
        )
        self.slot = ModelSlot(self.old)
        self.messages: list[str] = []

    def try_out(self, percent: int = 100) -> Noted:
        """Try the new model out; return it."""
        self.slot.try_out(self.new, percent, lambda: self.messages.append(self.slot.rollout.message))
        return self.models[1]


@pytest.fixture(name="rollout")
async def _rollout() -> AsyncIterator[Rollout]:
    async with ModelThread() as one, ModelThread() as other, ModelThread() as third:
        yield Rollout((one, other, third))


async def answers(pipeline: Answering, frames: Sequence[Frame]) -> list[tuple[str | None, str]]:
    """Return the labels of frames, in order, and the versions of the models that gave them."""
    return [
        (conclusion.outcome.prediction and conclusion.outcome.prediction.label, sample.version)
        for sample, conclusion in await pipeline.answer(frames)
    ]


async def test_a_replaced_model_is_closed_after_its_last_answer_and_once(rollout: Rollout) -> None:
    slot, model = rollout.slot, rollout.models[0]
    model.gate.clear()
    async with answering(slot) as pipeline:
        asking = asyncio.create_task(answers(pipeline, [frame(1)]))
        await eventually(lambda: rollout.old.busy_s > 0)
        slot.replace(rollout.new)
        await asyncio.sleep(0.2)
        assert (model.closes, rollout.old in slot.loaded) == (0, True)
        model.gate.set()
        assert await asking == [("1", "1")]
    await eventually(lambda: rollout.old not in slot.loaded)
    await slot.close()
    assert model.closes == 1


async def test_a_replaced_model_waits_for_samples_that_are_its_own_and_not_in_its_thread_yet(rollout: Rollout) -> None:
    for _ in range(2):
        rollout.old.acquire()
    rollout.slot.replace(rollout.new)
    for _ in range(2):
        await asyncio.sleep(0.1)
        assert rollout.models[0].closes == 0
        rollout.old.release()
    await eventually(lambda: rollout.models[0].closes == 1)


@pytest.mark.parametrize("percent", [0, 10, 50, 100])
async def test_a_share_of_the_samples_goes_to_a_new_model_and_the_same_ones_each_time(
    rollout: Rollout, percent: int
) -> None:
    rollout.try_out(percent)
    ids = [new_id() for _ in range(4000)]
    is_new = [rollout.slot.choose(id_) is rollout.new for id_ in ids]
    assert abs(sum(is_new) - 40 * percent) <= (0 if percent in {0, 100} else 200)
    assert is_new == [zlib.crc32(id_) % 100 < percent for id_ in ids], "as in each version"


async def test_a_mixed_batch_is_answered_in_order_and_each_sample_by_its_own_model(rollout: Rollout) -> None:
    rollout.try_out(50)
    frames = [frame(i) for i in range(40)]
    async with answering(rollout.slot) as pipeline:
        answered = await answers(pipeline, frames)
    assert answered == [(str(i), rollout.slot.choose(body.id).version) for i, body in enumerate(frames)]
    assert (pipeline.calls, rollout.old.answered + rollout.new.answered) == (2, 40)


async def test_a_new_model_that_proved_itself_takes_over_and_one_that_is_given_up_is_closed(rollout: Rollout) -> None:
    slot, (first, second, third) = rollout.slot, rollout.models
    slot.try_out(rollout.newer, 10)
    slot.try_out(rollout.new, 10)
    await eventually(lambda: third.closes == 1)
    slot.replace(rollout.new)
    await eventually(lambda: first.closes == 1)
    assert (slot.current, slot.rollout.canary, second.closes) == (rollout.new, None, 0)


@pytest.mark.parametrize("blind", [False, True])
async def test_a_canary_that_fails_is_withdrawn_and_what_it_failed_at_is_answered_by_the_other(
    rollout: Rollout, *, blind: bool
) -> None:
    slot, second = rollout.slot, rollout.try_out()
    second.broken, second.blind = True, blind
    async with answering(slot) as pipeline:
        for i in range(2):
            assert await answers(pipeline, [frame(i)]) == [(str(i), "1")]
        assert (slot.rollout.canary, rollout.messages) == (rollout.new, [])
        calls = pipeline.calls
        assert await answers(pipeline, [frame(i) for i in range(4)]) == [(str(i), "1") for i in range(4)]
        assert pipeline.calls > calls
    assert (slot.rollout.canary, slot.choose(new_id())) == (None, rollout.old)
    (message,) = rollout.messages
    assert ("another shape" if blind else "at everything") in message
    assert (rollout.new.failed, rollout.old.answered, rollout.old.failed) == (6, 6, 0)
    await eventually(lambda: second.closes == 1)
    assert rollout.models[0].closes == 0


async def test_samples_that_both_fail_at_are_no_strikes_nor_are_those_of_a_model_in_use(rollout: Rollout) -> None:
    slot, second = rollout.slot, rollout.try_out()
    async with answering(slot) as pipeline:
        for _ in range(6):
            assert await answers(pipeline, [frame(BAD)]) == [(None, "2")]
        assert (slot.rollout.canary, rollout.messages, slot.rollout.strikes) == (rollout.new, [], 0)
        slot.replace(rollout.new)
        second.broken = True
        for _ in range(6):
            assert await answers(pipeline, [frame(1)]) == [(None, "2")]
    assert (slot.current, rollout.messages) == (rollout.new, [])


async def test_a_sample_under_way_in_a_canary_that_is_given_up_is_answered_all_the_same(rollout: Rollout) -> None:
    second = rollout.try_out()
    second.broken = True
    second.gate.clear()
    async with answering(rollout.slot) as pipeline, asyncio.TaskGroup() as group:
        asking = group.create_task(answers(pipeline, [frame(7) for _ in range(5)]))
        await eventually(lambda: rollout.new.busy_s > 0)
        rollout.slot.try_out(None, 0)
        second.gate.set()
    assert set(asking.result()) == {("7", "1")}
    assert rollout.messages == []


async def test_once_it_has_taken_over_a_models_failures_are_its_own_also_when_the_next_one_has(
    rollout: Rollout,
) -> None:
    slot, second = rollout.slot, rollout.try_out()
    slot.replace(rollout.new)
    second.broken = True
    second.gate.clear()
    async with answering(slot) as pipeline:
        asking = asyncio.create_task(answers(pipeline, [frame(7)]))
        await eventually(lambda: rollout.new.busy_s > 0)
        slot.replace(rollout.newer)
        second.gate.set()
        assert await asking == [(None, "2")]
    assert rollout.newer.answered == 0


async def test_a_model_is_for_the_event_loop_while_it_is_watched_and_short_and_ours_and_no_canary_is_tried(
    rollout: Rollout,
) -> None:
    loaded = LoadedModel(Ours(), rollout.old.thread, "1")
    slot = ModelSlot(loaded)
    for guarded, policy, ours in itertools.product((False, True), (InlinePolicy(), short()), (False, True)):
        slot.guarded, loaded.inline_policy = guarded, policy
        loaded.model.ours = ours
        assert (slot.inline_model is loaded) == (guarded and policy.max_samples > 0 and ours)
    slot.try_out(rollout.new, 10)
    assert slot.inline_model is None
    slot.try_out(None, 0)
    assert slot.inline_model is loaded


async def test_only_a_canary_on_trial_has_a_model_that_answers_in_its_place(rollout: Rollout) -> None:
    slot, old, new = rollout.slot, rollout.old, rollout.new
    adopted: list[tuple[LoadedModel, int]] = []
    slot.adopt = lambda model, percent: adopted.append((model, percent))
    assert (slot.fallback(old), slot.fallback(new), slot.audit_share, slot.guarded) == (None, None, 0.0, False)
    slot.try_out(new, 10)
    assert (slot.fallback(new), slot.fallback(old), slot.loaded) == (old, None, [old, new])
    slot.replace(new)
    assert (slot.fallback(new), slot.lanes) == (None, 1)
    assert adopted == [(new, 10), (new, 100)]
    old.on_trial = True
    assert slot.fallback(old) is new


def refuse(*_: object) -> None:
    raise ValueError("its calibration does not fit")


@pytest.mark.parametrize("percent", [10, 100])
async def test_a_new_model_that_is_refused_is_closed_and_a_canary_stays(rollout: Rollout, percent: int) -> None:
    slot, new = rollout.slot, rollout.models[1]
    slot.try_out(rollout.newer, 5)
    slot.adopt = refuse
    for model in (rollout.new, rollout.newer):
        with pytest.raises(ValueError, match="does not fit"):
            slot.try_out(model, percent) if percent < 100 else slot.replace(model)
    await eventually(lambda: slot.loaded == [rollout.old, rollout.newer])
    assert (new.closes, rollout.models[2].closes) == (1, 0)
