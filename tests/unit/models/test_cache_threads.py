"""File work in threads: a caller that is cancelled waits for it, and what it raises then troubles nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from halimede.models.cache import in_thread
from tests.waiting import patience


async def test_what_work_raises_after_its_caller_was_cancelled_is_not_reported_as_lost() -> None:
    begun, go = threading.Event(), threading.Event()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def work() -> None:
        begun.set()
        go.wait(10)
        raise OSError(28, "No space left on device")

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, patience(10))
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
