"""A model call that does not come back is named, and ends the process where the event loop hangs with it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from halimede.pipeline.executor import LoopWatchdog, ModelStuckError, ModelThread


async def test_a_call_that_does_not_come_back_is_named() -> None:
    gate = threading.Event()
    async with ModelThread() as thread:
        await thread.call(lambda: None)
        call = thread.call(gate.wait, 30)
        waiting = asyncio.ensure_future(call)
        with pytest.raises(ModelStuckError, match="MODEL_TIMEOUT_S"):
            await thread.watch(0.2)
        gate.set()
        assert await waiting


async def test_a_call_that_hangs_with_the_loop_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    left: list[int] = []
    over = threading.Event()

    def leave(code: int) -> None:
        left.append(code)
        over.set()

    with LoopWatchdog(lambda: 1.0, 0.04, text="it is stuck", code=3, end=leave):
        assert over.wait(10)  # the loop stands meanwhile
    assert left == [3]
    assert capsys.readouterr().err == "it is stuck\n"


def test_a_call_that_only_seems_to_hang_once_ends_nothing() -> None:
    left: list[int] = []
    looks = iter([1.0, 1.0, 0.0] * 3)
    over = threading.Event()

    def busy_s() -> float:
        value = next(looks, None)
        if value is None:
            over.set()
        return value or 0.0

    with LoopWatchdog(busy_s, 0.04, text="", code=3, end=left.append):
        assert over.wait(10)
        time.sleep(0)
    assert left == []
