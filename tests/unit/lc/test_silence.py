"""Which workers count as silent, which as hung, and which of those are killed when; in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.messages import WorkerInfo
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.supervisor import silence
from services.lc.supervisor.silence import SilenceWatch, is_hung
from services.lc.supervisor.worker_state import NOT_CONNECTED, SILENT, WorkerState, phase_of
from tests.simulated import simulated

WORKER, SERVICE = Worker("default", "w"), Key("jointinferenceservices", "default", "s")


class Node:
    """One worker that reports while it is ``well``; ``hangs``: what its health port shows."""

    def __init__(self, *, period_s: float, env: dict[str, str]) -> None:
        self.connected = self.well = True
        self.hangs = False
        self.error = ""
        self.killed_at: float | None = None
        self.changes = 0
        self.process = SimpleNamespace(stopped=False, record=SimpleNamespace(pid=1), kill=self._kill)
        start: Any = SimpleNamespace(spec=SimpleNamespace(env=env, reports=True))
        self.entry = WorkerState(WORKER, SERVICE, "u", "edge", "hash", "hash", start)
        self.entry.process = self.process  # type: ignore[assignment]
        self.entry.period_s = period_s
        info = WorkerInfo(name="w", namespace="default", owner_name="s", status="running", period_s=period_s)
        self.entry.info = info

    def _kill(self) -> None:
        self.killed_at = self.killed_at or asyncio.get_running_loop().time()
        self.entry.process = None

    def _changed(self, _: Key) -> None:
        self.changes += 1

    async def _report(self) -> None:
        while True:
            if self.well and self.connected:
                self.entry.last_report_at = asyncio.get_running_loop().time()
            await asyncio.sleep(3)

    @property
    def reason(self) -> str:
        return phase_of(self.entry, asyncio.get_running_loop().time())[1]


@asynccontextmanager
async def node(monkeypatch: pytest.MonkeyPatch, *, period_s: float = 3.0, **env: str) -> AsyncIterator[Node]:
    found = Node(period_s=period_s, env=env)

    async def hangs(_: str) -> bool:
        return found.hangs

    monkeypatch.setattr(silence, "is_hung", hangs)
    watch = SilenceWatch({WORKER: found.entry}, lambda: found.connected, found._changed, lambda _, age_s: found.error)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch.run()), group.create_task(found._report())]
        yield found
        for task in tasks:
            task.cancel()


@simulated
async def test_a_worker_that_reports_is_never_silent_in_a_calm_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(monkeypatch) as n:
        await asyncio.sleep(3600)
        assert (n.reason, n.changes, n.killed_at) == ("", 0, None)


@simulated
async def test_a_stopped_worker_is_silent_after_ten_seconds_and_killed_after_fifteen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(monkeypatch) as n:
        await asyncio.sleep(60)
        n.well, n.hangs, n.process.stopped = False, True, True
        await asyncio.sleep(12)
        assert n.reason == SILENT
        await asyncio.sleep(6)
        assert n.killed_at is not None


@simulated
async def test_an_overdue_report_is_noted_before_the_worker_is_silent_and_until_it_reports_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(monkeypatch) as n:
        await asyncio.sleep(60)
        assert n.entry.overdue_since == ""
        n.well = False
        began, changes = asyncio.get_running_loop().time(), n.changes
        while not n.entry.overdue_since:
            await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began <= 6.5
        assert n.reason == ""
        noted = n.entry.overdue_since
        while not n.reason:
            await asyncio.sleep(0.1)
        assert (n.reason, n.entry.overdue_since) == (SILENT, noted)
        n.well = True
        await asyncio.sleep(5)
        assert (n.reason, n.entry.overdue_since) == ("", "")
        assert n.changes == changes + 4


@simulated
async def test_a_deadlocked_worker_is_killed_only_once_its_model_would_have_timed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(monkeypatch, MODEL_TIMEOUT_S="100") as n:
        n.well, n.hangs = False, True
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(200)
        assert n.killed_at is not None
        assert 110 <= n.killed_at - began <= 115


@simulated
async def test_a_silent_worker_whose_health_port_answers_is_named_and_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(monkeypatch) as n:
        n.well = False
        await asyncio.sleep(600)
        assert (n.reason, n.killed_at) == (SILENT, None)
        assert "its process runs" in n.entry.silence
        n.well = True
        await asyncio.sleep(5)
        assert n.reason == ""


@simulated
async def test_nobody_is_silent_while_the_controller_itself_has_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(monkeypatch) as n:
        n.connected, n.hangs, n.process.stopped = False, True, True
        await asyncio.sleep(300)
        assert (n.reason, n.killed_at) == ("", None)


@simulated
async def test_a_worker_that_reports_rarely_has_three_of_its_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(monkeypatch, period_s=60.0) as n:
        n.well = False
        await asyncio.sleep(170)
        assert n.reason == ""
        await asyncio.sleep(20)
        assert n.reason == SILENT


@pytest.mark.parametrize("period_s", [3.0, 0.0])
@simulated
async def test_an_adopted_worker_that_never_reports_is_silent_as_one_that_reported_at_its_adoption(
    monkeypatch: pytest.MonkeyPatch, period_s: float
) -> None:
    async with node(monkeypatch, period_s=period_s) as n:
        n.entry.adopted, n.entry.info = True, None
        n.entry.last_report_at = asyncio.get_running_loop().time()
        n.well, n.hangs = False, True
        await asyncio.sleep(9)
        assert n.reason == ""
        await asyncio.sleep(4)
        assert n.reason == SILENT
        await asyncio.sleep(70)
        assert n.killed_at is not None


@simulated
async def test_an_adopted_script_that_never_reported_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(monkeypatch, period_s=0.0) as n:
        n.entry.adopted, n.entry.info = True, None
        n.entry.start = None
        n.well, n.hangs = False, True
        await asyncio.sleep(600)
        assert (n.reason, n.killed_at) == ("", None)


async def test_only_a_port_that_takes_a_connection_and_answers_nothing_hangs() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 503 x\r\n\r\n")
        await writer.drain()
        writer.close()

    for handler, hangs in ((mute, True), (answer, False)):
        async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert await is_hung(f"http://127.0.0.1:{port}") is hangs
    assert not await is_hung(f"http://127.0.0.1:{port}"), "nobody listens there any more"
    assert not await is_hung("")


@simulated
async def test_a_worker_without_a_connection_is_named_with_the_cause_until_it_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(monkeypatch, period_s=0.0) as n:
        info, n.entry.info, n.well = n.entry.info, None, False
        n.error = "the broker refused the connection: Not authorized"
        await asyncio.sleep(2)
        assert n.reason == "Starting"
        await asyncio.sleep(3)
        phase, reason, message = phase_of(n.entry, asyncio.get_running_loop().time())
        assert (phase, reason, message) == ("Pending", NOT_CONNECTED, n.error)
        n.error = ""
        await asyncio.sleep(2)
        assert n.reason == "Starting"
        n.entry.info = info
        assert n.reason == ""


@simulated
async def test_without_a_connection_of_the_controller_no_worker_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(monkeypatch, period_s=0.0) as n:
        n.entry.info, n.well, n.connected = None, False, False
        n.error = "no connection"
        await asyncio.sleep(20)
        assert n.reason == "Starting"


@simulated
async def test_a_silent_worker_that_the_broker_refuses_is_named_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(monkeypatch) as n:
        n.well, n.error = False, "the broker refused the connection: Not authorized"
        await asyncio.sleep(20)
        assert n.reason == SILENT
        assert n.entry.silence.endswith(f"its connection to the broker ({n.error})")
