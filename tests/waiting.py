"""How long tests wait: for the fact that they assert, until a deadline that only what never comes true reaches.

Deadlines are those of a quiet machine. Each is for one step; it is longer on the clock of the machine, which may be
slow, and busy with other tests. Simulated time passes alike everywhere, and its deadlines stay as they are.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import time
from collections.abc import Callable
from typing import Any

#: how many times longer a step may take than on a quiet machine
SLOWEST = 5.0


def patience(seconds: float) -> float:
    """Return the deadline, on the clock of the machine, of a step that takes less than so long on a quiet one."""
    return SLOWEST * seconds


async def eventually(
    condition: Callable[[], Any], timeout_s: float = 20.0, every_s: float = 0.01, shown: Callable[[], object] = str
) -> Any:
    """Wait until ``condition()``, which may be async, is true, on either kind of loop, and return its value.

    Fail at the deadline, with what ``shown()`` gives.
    """
    loop = asyncio.get_running_loop()
    is_simulated = type(loop).time is not asyncio.BaseEventLoop.time
    within_s = timeout_s if is_simulated else patience(timeout_s)
    deadline = loop.time() + within_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() >= deadline:
            raise AssertionError(f"did not come true within {within_s:g} s {shown()}".rstrip())
        await asyncio.sleep(every_s)


def wait_for(condition: Callable[[], Any], timeout_s: float = 20.0, every_s: float = 0.01) -> Any:
    """Wait without a loop, as ``eventually`` does on one."""
    deadline = time.monotonic() + patience(timeout_s)
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not come true within {patience(timeout_s):g} s"
        time.sleep(every_s)
    return value


async def output_of(process: asyncio.subprocess.Process, silence_s: float = 120.0) -> str:
    """Return what a program prints until it ends; end it, and fail, where it prints nothing for too long."""
    assert process.stdout
    printed = b""
    try:
        while True:
            async with asyncio.timeout(patience(silence_s)):
                piece = await process.stdout.read(65_536)
            if not piece:
                return printed.decode()
            printed += piece
    except TimeoutError:
        raise AssertionError(f"nothing printed for {patience(silence_s):g} s after:\n{printed.decode()}") from None
    finally:
        if not process.stdout.at_eof():
            process.send_signal(signal.SIGINT)  # it ends what it has started
        await process.wait()
