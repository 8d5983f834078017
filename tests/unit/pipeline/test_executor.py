"""A model call that does not come back is named, and ends the process where the event loop hangs with it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.pipeline import executor
from halimede.pipeline.executor import LoopWatchdog, ModelStuckError, ModelThread, check_interval_s, watch
from tests.waiting import patience


async def test_a_call_that_does_not_come_back_is_named(thread: ModelThread) -> None:
    gate = threading.Event()
    await thread.call(lambda: None)
    waiting = asyncio.ensure_future(thread.call(gate.wait, 30))
    with pytest.raises(ModelStuckError, match="MODEL_TIMEOUT_S"):
        await thread.watch(0.2)
    gate.set()
    assert await waiting


@pytest.mark.parametrize(("limit_s", "noticed_s"), [(0.2, 0.25), (60.0, 61.0)])
@pytest.mark.simulated
async def test_a_call_that_does_not_come_back_is_noticed_soon_after_its_limit(limit_s: float, noticed_s: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ModelStuckError):
        await watch(lambda: loop.time() - began, limit_s)
    assert loop.time() - began == pytest.approx(noticed_s, abs=0.01)


def codes_of_watchdog(busy_s: Iterator[float], limit_s: float, text: str = "") -> list[int]:
    """Have a watchdog check a call until it ends the process or all checks are made; return the codes of its ends."""
    codes, over = list[int](), threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        over.set()

    def check() -> float:
        value = next(busy_s, None)
        if value is None:
            over.set()
        return value or 0.0

    with LoopWatchdog(check, limit_s, text=text, code=3, end=end) as watchdog:
        assert watchdog._thread.daemon, "no process waits for it"
        assert over.wait(patience(10))  # the loop stands meanwhile
    return codes


def test_a_call_that_hangs_with_the_loop_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    checks = itertools.count(1.0)
    assert (codes_of_watchdog(checks, 0.04, "it is stuck"), next(checks)) == ([3], 4.0)
    assert capsys.readouterr().err == "it is stuck\n"


@pytest.mark.parametrize(
    ("busy_s", "limit_s"), [([1.0, 1.0, 0.0] * 3, 0.04), ([0.02] * 6, 0.02)], ids=["it only seems to", "at the limit"]
)
def test_a_call_that_does_not_hang_ends_nothing(busy_s: list[float], limit_s: float) -> None:
    assert codes_of_watchdog(iter(busy_s), limit_s) == []


@pytest.mark.parametrize(("limit_s", "interval_s"), [(0.2, 0.05), (2.0, 0.5), (4.0, 1.0), (60.0, 1.0)])
def test_a_call_is_checked_four_times_before_its_limit_and_every_second_at_least(
    limit_s: float, interval_s: float
) -> None:
    assert check_interval_s(limit_s) == interval_s


@pytest.mark.simulated
async def test_a_call_may_take_exactly_its_limit() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            await watch(lambda: 2.0, 2.0)


def test_what_a_watchdog_writes_is_out_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    stream = SimpleNamespace(write=lambda text: events.append(text.strip()), flush=lambda: events.append("out"))
    monkeypatch.setattr(sys, "stderr", stream)
    over = threading.Event()

    def end(_: int) -> None:
        events.append("end")
        over.set()

    with LoopWatchdog(lambda: 1.0, 0.004, text="stuck", code=3, end=end):
        assert over.wait(patience(10))
    assert [event for event in events if event] == ["stuck", "out", "end"]


async def test_a_thread_is_idle_while_no_call_runs_or_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[dict[str, bool]] = []
    thread = ModelThread()
    assert (thread.idle, thread.busy_s) == (False, 0.0)
    with pytest.raises(RuntimeError, match="async with"):
        await thread.call(int)
    async with thread:
        assert thread.idle
        gate, entered = threading.Event(), list[int]()
        calls = [
            asyncio.create_task(thread.call(lambda: (entered.append(1), gate.wait(patience(20))))) for _ in range(2)
        ]
        await asyncio.sleep(0)
        assert not thread.idle
        gate.set()
        await asyncio.gather(*calls)
        assert thread.idle
        clock = iter([10.0, 12.5])
        monkeypatch.setattr(executor, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        assert thread.run_watched(lambda: (thread.idle, thread.busy_s)) == (False, 2.5)
        assert (thread.idle, thread.busy_s) == (True, 0.0)
        workers: Any = thread._executor
        assert workers._max_workers == 1, "models need not be thread-safe"
        monkeypatch.setattr(workers, "shutdown", lambda **options: ended.append(options))
    assert ended == [{"wait": False, "cancel_futures": True}]
    assert not thread.idle
