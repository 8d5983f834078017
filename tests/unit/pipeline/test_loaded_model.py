"""Which model calls run on the event loop: short ones of our own models, as long as somebody else watches them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from halimede.frames import new_frame
from halimede.inference import Array
from halimede.messages import Frame, Prediction
from halimede.pipeline import model_slot
from halimede.pipeline.executor import BLOCK_BYTES, ENOUGH, InlinePolicy, LoopWatchdog, ModelThread
from halimede.pipeline.model_slot import STUCK_CODE, LoadedModel, ModelSlot
from tests.unit.frames.clouds import Brightness, frame
from tests.unit.pipeline.answering import answering


class Ours(Brightness):
    """Notes in which thread it runs."""

    ours = True

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        self.threads.append(threading.get_ident())
        return super().predict(batch)


class Users(Ours):
    ours = False


def short() -> InlinePolicy:
    policy = InlinePolicy()
    for _ in range(ENOUGH):
        policy.learn(1, 0.05)
    return policy


async def ran_here(model: Ours, *, watched: bool, given: Frame | None = None, busy: bool = False) -> bool:
    async with ModelThread() as thread:
        loaded = LoadedModel(model, thread)
        loaded.inline_policy = short()
        slot = ModelSlot(loaded)
        watching = asyncio.create_task(slot.watch(60)) if watched else None
        gate = threading.Event()
        await asyncio.sleep(0)
        working = asyncio.create_task(thread.call(gate.wait, 10)) if busy else None
        await asyncio.sleep(0)
        async with answering(slot) as pipeline:
            asking = asyncio.create_task(pipeline.answer([given or frame(1)]))
            await asyncio.sleep(0.01)
            gate.set()
            ((_, conclusion),) = await asking
        assert conclusion.outcome.prediction is not None
        for task in filter(None, (watching, working)):
            task.cancel()
        return model.threads == [threading.get_ident()]


async def test_a_short_call_of_our_own_model_runs_on_the_loop_while_a_thread_watches_it() -> None:
    assert await ran_here(Ours(), watched=True)
    assert not await ran_here(Ours(), watched=False)


async def test_a_users_model_never_does_however_short_it_was() -> None:
    assert not await ran_here(Users(), watched=True)


async def test_what_has_to_be_decoded_or_is_large_does_not() -> None:
    small = np.full((2, 2), 1, np.uint8)
    assert not await ran_here(Ours(), watched=True, given=new_frame(small, encoding="png"))
    large = np.full((BLOCK_BYTES // 1024 + 1, 1024), 1, np.uint8)
    assert not await ran_here(Ours(), watched=True, given=new_frame(large))


async def test_it_does_not_overtake_a_call_that_is_under_way() -> None:
    assert not await ran_here(Ours(), watched=True, busy=True)


async def test_calls_are_learnt_as_they_are_made_in_either_place() -> None:
    model = Ours()
    async with ModelThread() as thread:
        slot = ModelSlot(LoadedModel(model, thread))
        watching = asyncio.create_task(slot.watch(60))
        async with answering(slot) as pipeline:
            for _ in range(20 * ENOUGH):
                await pipeline.answer([frame(1)])
                if threading.get_ident() in model.threads:
                    break
        assert slot.turn
        watching.cancel()
        await asyncio.sleep(0)
        assert not slot.turn


async def test_a_call_that_hangs_with_the_loop_ends_the_worker_with_the_code_that_its_supervisor_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[int] = []
    over = threading.Event()

    def end(code: int) -> None:
        left.append(code)
        over.set()

    monkeypatch.setattr(model_slot, "LoopWatchdog", partial(LoopWatchdog, end=end))
    async with ModelThread() as thread:
        watching = asyncio.create_task(ModelSlot(LoadedModel(Ours(), thread)).watch(0.04))
        await asyncio.sleep(0)
        thread.inline(over.wait, 10)  # the event loop stands meanwhile
        watching.cancel()
    assert left == [STUCK_CODE]
    assert "MODEL_TIMEOUT_S" in capsys.readouterr().err
