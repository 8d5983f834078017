"""Which model calls run on the event loop: short ones of our own models, as long as somebody else watches them."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from halimede.frames import new_frame
from halimede.messages import Frame, Prediction
from halimede.pipeline import model_slot
from halimede.pipeline.executor import LoopWatchdog, ModelThread
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from tests.simulated import eventually
from tests.unit.frames.clouds import frame
from tests.unit.pipeline.answering import Ours, answering, new_sample, short

#: stated here again, so that a change in the product is noticed
BLOCK_BYTES, STUCK_CODE = 4 * 1024 * 1024, 2


class Users(Ours):
    ours = False


SMALL, LARGE = np.full((2, 2), 1, np.uint8), np.full((BLOCK_BYTES // 1024 + 1, 1024), 1, np.uint8)


@pytest.mark.parametrize(
    ("model", "watched", "body", "busy", "here"),
    [
        (Ours, True, frame(1), False, True),
        (Ours, False, frame(1), False, False),
        (Users, True, frame(1), False, False),
        (Ours, True, new_frame(SMALL, encoding="png"), False, False),
        (Ours, True, new_frame(LARGE), False, False),
        (Ours, True, frame(1), True, False),
    ],
    ids=["ours", "not watched", "a user's", "to be decoded", "large", "behind a call that is under way"],
)
async def test_a_short_call_of_our_own_model_runs_on_the_loop_while_a_thread_watches_it_and_nothing_is_in_its_way(
    thread: ModelThread, *, model: type[Ours], watched: bool, body: Frame, busy: bool, here: bool
) -> None:
    loaded, gate = LoadedModel(model(), thread), threading.Event()
    loaded.inline_policy = short()
    slot = ModelSlot(loaded)
    watching = asyncio.create_task(slot.watch(60)) if watched else None
    await asyncio.sleep(0)
    working = asyncio.create_task(thread.call(gate.wait, 10)) if busy else None
    await asyncio.sleep(0)
    async with answering(slot) as pipeline:
        asking = asyncio.create_task(pipeline.answer([body]))
        await eventually(lambda: asking.done() or thread._calls == 2)  # answered, or behind the call that is under way
        gate.set()
        ((_, conclusion),) = await asking
    assert conclusion.outcome.prediction is not None
    for task in filter(None, (watching, working)):
        task.cancel()
    assert (loaded.model.threads == [threading.get_ident()]) is here  # type: ignore[attr-defined]


async def test_a_call_that_hangs_with_the_loop_ends_the_worker_with_the_code_that_its_supervisor_knows(
    thread: ModelThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, over = list[int](), threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        over.set()

    monkeypatch.setattr(model_slot, "LoopWatchdog", partial(LoopWatchdog, end=end))
    watching = asyncio.create_task(ModelSlot(LoadedModel(Ours(), thread)).watch(0.04))
    await asyncio.sleep(0)
    thread.run_watched(over.wait, 10)  # the event loop stands meanwhile
    watching.cancel()
    assert codes == [STUCK_CODE]
    assert "MODEL_TIMEOUT_S" in capsys.readouterr().err


def loaded_model(version: str = "") -> LoadedModel:
    """Return a model whose thread nobody calls."""
    return LoadedModel(Ours(), ModelThread(), version)


def test_a_model_that_fails_on_more_than_half_of_twenty_samples_is_failing_until_the_next_twenty() -> None:
    loaded, failing = loaded_model(), list[bool]()
    loaded.last_error = "no memory"
    for answered, errors in ((10, 10), (0, 19), (0, 1), (19, 0), (1, 0), (9, 11), (11, 9)):
        loaded.answered += answered
        loaded.errors += errors
        failing.append(bool(loaded.failure()))
    assert failing == [False, False, True, True, False, True, False]
    loaded.errors += 30
    assert loaded.failure() == "its model failed on 30 of the last 30 samples: no memory"


async def test_after_a_long_call_the_cpu_time_of_the_eighth_next_is_measured_and_after_a_very_long_one_of_the_next(
    thread: ModelThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, learnt, two = [0.0], list[tuple[int, float]](), [new_sample(), new_sample()]
    durations_ms = iter([0.6, 0.61, *[0.1] * 3, 4.1, *[0.1] * 3, 9.0, 4.0, *[0.5] * 8, 4.1, 9.0, 0.1])

    def infer(*_: object) -> list[InferenceOutcome]:
        clock[0] += next(durations_ms) / 1000
        return [InferenceOutcome(), InferenceOutcome()]

    time = SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: clock[0] * 10)
    monkeypatch.setattr(model_slot, "time", time)
    loaded = LoadedModel(Ours(), thread)
    loaded.inline_policy = SimpleNamespace(  # type: ignore[assignment]
        max_samples=2, learn=lambda count, ms: learnt.append((count, round(ms, 3)))
    )
    for _ in range(22):
        assert loaded.try_inline(infer, two)
    assert loaded.try_inline(infer, [*two, *two]) is None
    short_ms, measured = [0.5] * 7, [90.0, 5.0, 90.0]
    assert [ms for _, ms in learnt] == [0.6, *[0.1] * 6, measured[0], *short_ms, measured[1], measured[2], 0.1]
    assert {count for count, _ in learnt} == {2}


def test_small_raw_frames_and_inputs_of_the_model_itself_are_light() -> None:
    loaded, half = loaded_model(), np.ones((BLOCK_BYTES // 2048, 1024), np.uint8)
    whole, more = [new_sample(new_frame(half)), new_sample(new_frame(half))], new_sample()
    assert loaded._is_light(whole)
    assert not loaded._is_light([*whole, more])
    more.input, more.model = np.zeros(1), loaded
    assert loaded._is_light([*whole, more])
    more.model = loaded_model()
    assert not loaded._is_light([more])


def test_answers_and_failures_are_counted_and_each_call_once() -> None:
    loaded, batch = loaded_model("v1"), [new_sample() for _ in range(5)]
    loaded.on_trial = True
    outcomes = [
        *[InferenceOutcome(Prediction(), batch=2, began=1.0, ms=4.0)] * 2,
        InferenceOutcome(error="it broke", batch=1, began=2.0, ms=3.0),
        InferenceOutcome(error="no picture", unfit=True),
        InferenceOutcome(error="unread", began=7.0, ms=5.0),
    ]
    loaded._learn(batch, outcomes)
    assert (loaded.answered, loaded.failed, loaded.errors, loaded.last_error) == (2, 3, 2, "unread")
    assert (loaded.calls.count, loaded.calls.total) == (2, 7.0)
    assert {(sample.version, sample.on_trial) for sample in batch} == {("v1", True)}


@pytest.mark.simulated
async def test_a_model_that_does_not_close_is_given_up_after_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, loaded = asyncio.get_running_loop(), loaded_model()
    monkeypatch.setattr(loaded.thread, "call", lambda *_: asyncio.sleep(1000))
    loaded.acquire()
    loop.call_later(5, loaded.release)
    await loaded.retire()
    assert loop.time() == 35


async def test_a_call_goes_to_an_idle_thread_and_the_longest_running_call_is_watched() -> None:
    async with ModelThread() as one, ModelThread() as two, ModelThread() as three:
        loaded, used = LoadedModel(Ours(), one, more=[two, three]), list[ModelThread]()
        for thread in (one, two, three):
            thread.call = partial(record, used, thread)  # type: ignore[method-assign]
        for busy in ((False, False, False), (True, False, False), (True, True, False), (True, True, True)):
            for thread, is_busy in zip((one, two, three), busy, strict=True):
                thread._calls = int(is_busy)
            await loaded.run(lambda *_: [], [])
        assert used == [one, two, three, one]
        one._began, two._began = -10.0, -20.0
        least_s = two.busy_s
        assert one.busy_s < least_s <= loaded.busy_s <= ModelSlot(loaded).busy_s
        assert three.busy_s == 0


async def record(used: list[ModelThread], thread: ModelThread, *_: object) -> tuple[list[InferenceOutcome], float]:
    used.append(thread)
    return [], 0.0
