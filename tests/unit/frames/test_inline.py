"""Which model calls run on the event loop: short ones of our own models, as long as somebody else watches them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from halimede.frames import new_frame
from halimede.frames.compute import ModelThread
from halimede.frames.inline import ENOUGH, LONGEST_MS, SHORT_MS, STUCK_CODE, TURN_BYTES, Brief, Guard
from halimede.frames.loaded import Loaded
from halimede.frames.slot import Slot
from halimede.inference import Array
from halimede.messages import Prediction
from tests.unit.frames.clouds import Brightness, frame


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


def short() -> Brief:
    brief = Brief()
    for _ in range(ENOUGH):
        brief.learn(1, 0.05)
    return brief


def test_calls_are_short_once_enough_of_them_were() -> None:
    brief = Brief()
    for _ in range(ENOUGH - 1):
        brief.learn(1, 0.05)
    assert brief.room == 0
    brief.learn(1, 0.05)
    assert brief.room >= 10


def test_a_single_long_call_means_that_they_are_not() -> None:
    brief = short()
    brief.learn(4, 4 * LONGEST_MS + 1)
    assert brief.room == 0


def test_calls_that_become_longer_are_noticed_and_a_little_does_not_matter() -> None:
    brief = short()
    for _ in range(100):
        brief.learn(1, 1.5 * SHORT_MS)
    assert brief.room >= 1
    for _ in range(100):
        brief.learn(1, 2.5 * SHORT_MS)
    assert brief.room == 0


async def ran_here(model: Ours, *, watched: bool, given: object = None, busy: bool = False) -> bool:
    async with ModelThread() as thread:
        loaded = Loaded(model, thread)
        loaded.brief = short()
        slot = Slot(loaded)
        watching = asyncio.create_task(slot.watch(60)) if watched else None
        gate = threading.Event()
        await asyncio.sleep(0)
        working = asyncio.create_task(thread.call(gate.wait, 10)) if busy else None
        await asyncio.sleep(0)
        asking = asyncio.create_task(slot.answer([given or frame(1)], 8))  # type: ignore[list-item]
        await asyncio.sleep(0)
        gate.set()
        ((outcome, _),), _ = await asking
        assert outcome.prediction is not None
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
    large = np.full((TURN_BYTES // 1024 + 1, 1024), 1, np.uint8)
    assert not await ran_here(Ours(), watched=True, given=new_frame(large))


async def test_it_does_not_overtake_a_call_that_is_under_way() -> None:
    assert not await ran_here(Ours(), watched=True, busy=True)


async def test_calls_are_learnt_as_they_are_made_in_either_place() -> None:
    model = Ours()
    async with ModelThread() as thread:
        slot = Slot(Loaded(model, thread))
        watching = asyncio.create_task(slot.watch(60))
        for _ in range(20 * ENOUGH):
            await slot.answer([frame(1)], 8)
            if threading.get_ident() in model.threads:
                break
        assert slot.turn
        watching.cancel()
        await asyncio.sleep(0)
        assert not slot.turn


async def test_a_call_that_hangs_with_the_loop_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    left: list[int] = []
    over = threading.Event()

    def leave(code: int) -> None:
        left.append(code)
        over.set()

    with Guard(lambda: 1.0, 0.04, leave):
        assert over.wait(10)  # the loop stands meanwhile
    assert left == [STUCK_CODE]
    assert "MODEL_TIMEOUT_S" in capsys.readouterr().err


def test_a_call_that_only_seems_to_hang_once_ends_nothing() -> None:
    left: list[int] = []
    looks = iter([1.0, 1.0, 0.0] * 3)
    over = threading.Event()

    def busy_s() -> float:
        value = next(looks, None)
        if value is None:
            over.set()
        return value or 0.0

    with Guard(busy_s, 0.04, left.append):
        assert over.wait(10)
        time.sleep(0)
    assert left == []
