"""Which workers count as silent, which as hung, and which of those are killed when; in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.messages import WorkerInfo
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.supervisor import silence
from services.lc.supervisor.silence import SilenceWatch, is_hung
from services.lc.supervisor.worker_state import NOT_CONNECTED, SILENT, ReportTimes, WorkerState, phase_of
from tests.simulated import eventually, suspend

pytestmark = pytest.mark.simulated

WORKER, SERVICE = Worker("default", "w"), Key("jointinferenceservices", "default", "s")


class Node:
    """One worker that reports while it is ``well``; ``hangs``: what its health port shows."""

    def __init__(self, period_s: float) -> None:
        self.connected = self.well = True
        self.hangs = False
        self.error = ""
        #: seconds of the log that were read for the error
        self.ages: list[float] = []
        self.killed_at: float | None = None
        self.changes = 0
        self.process = SimpleNamespace(stopped=False, record=SimpleNamespace(pid=1), kill=self._kill)
        self.env: dict[str, str] = {}
        start: Any = SimpleNamespace(spec=SimpleNamespace(env=self.env, reports=True))
        self.entry = WorkerState(WORKER, SERVICE, "u", "edge", "hash", "hash", start)
        self.entry.process = self.process  # type: ignore[assignment]
        self.entry.period_s = period_s
        info = WorkerInfo(name="w", namespace="default", owner_name="s", status="running", period_s=period_s)
        self.entry.info = info

    def _kill(self) -> None:
        self.killed_at = self.killed_at or asyncio.get_running_loop().time()
        self.entry.process = None

    def read_error(self, _: Worker, age_s: float) -> str:
        self.ages.append(age_s)
        return self.error

    def _changed(self, _: Key) -> None:
        self.changes += 1

    async def _report(self) -> None:
        while True:
            if self.well and self.connected:
                self.entry.reports.last_at = asyncio.get_running_loop().time()
            await asyncio.sleep(3)

    @property
    def reason(self) -> str:
        return phase_of(self.entry, asyncio.get_running_loop().time())[1]


@pytest.fixture
def period_s() -> float:
    return 3.0


@pytest.fixture
async def n(period_s: float, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    found = Node(period_s)

    async def hangs(_: str) -> bool:
        return found.hangs

    monkeypatch.setattr(silence, "is_hung", hangs)
    watch = SilenceWatch({WORKER: found.entry}, lambda: found.connected, found._changed, found.read_error)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch.run()), group.create_task(found._report())]
        yield found
        for task in tasks:
            task.cancel()


async def test_a_worker_that_reports_is_never_silent_in_a_calm_hour(n: Node) -> None:
    await asyncio.sleep(3600)
    assert (n.reason, n.changes, n.killed_at) == ("", 0, None)


@pytest.mark.parametrize(
    ("period_s", "env", "stopped", "hangs", "expected"),
    [
        (3.0, {}, True, True, (6, 11, 16)),
        (3.0, {}, True, False, (6, 11, 16)),
        (3.0, {}, False, True, (6, 11, 71)),
        (3.0, {"MODEL_TIMEOUT_S": "100"}, False, True, (6, 11, 111)),
        (3.0, {"MODEL_TIMEOUT_S": "1"}, False, True, (6, 11, 16)),
        (20.0, {}, True, True, (31, 61, 61)),
    ],
    ids=["stopped", "stopped with an open port", "hung", "a patient model", "an impatient model", "a rare report"],
)
async def test_a_worker_without_reports_is_overdue_then_silent_and_killed_if_it_hangs(
    n: Node, env: dict[str, str], stopped: bool, hangs: bool, expected: tuple[int, int, int]
) -> None:
    n.env.update(env)
    await asyncio.sleep(0.5)
    n.well, n.hangs, n.process.stopped = False, hangs, stopped
    last_at, times = n.entry.reports.last_at, dict[str, float]()
    while not n.killed_at:
        now = asyncio.get_running_loop().time() - last_at
        if n.entry.reports.overdue_since:
            times.setdefault("overdue", now)
        if n.entry.reports.silence:
            times.setdefault("silent", now)
        await asyncio.sleep(0.1)
    times["killed"] = n.killed_at - last_at
    times.setdefault("silent", times["killed"])
    assert tuple(times.values()) == pytest.approx(expected, abs=0.2)


async def test_an_overdue_report_is_noted_before_the_worker_is_silent_and_until_it_reports_again(n: Node) -> None:
    await asyncio.sleep(60)
    assert n.entry.reports.overdue_since == ""
    n.well, changes = False, n.changes
    noted = await eventually(lambda: n.entry.reports.overdue_since)
    assert n.reason == ""
    await eventually(lambda: n.reason)
    assert (n.reason, n.entry.reports.overdue_since) == (SILENT, noted)
    n.well = True
    await asyncio.sleep(5)
    assert (n.reason, n.entry.reports.overdue_since) == ("", "")
    assert n.changes == changes + 4


async def test_a_silent_worker_whose_health_port_answers_is_named_and_not_killed(n: Node) -> None:
    n.well = False
    await asyncio.sleep(600)
    assert (n.reason, n.killed_at) == (SILENT, None)
    assert n.entry.reports.silence.startswith("no report for more than 10 s, and its process runs")
    n.well = True
    await asyncio.sleep(5)
    assert n.reason == ""


@pytest.mark.parametrize("event", ["reports", "ends", "starts again"])
async def test_what_happens_during_the_probe_of_a_worker_counts(
    n: Node, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe(_: str) -> bool:
        if event == "reports":
            n.entry.reports.last_at = asyncio.get_running_loop().time()
        else:
            n.entry.process = None if event == "ends" else copy(n.process)  # type: ignore[assignment]
        return True

    monkeypatch.setattr(silence, "is_hung", probe)
    n.well = False
    await asyncio.sleep(11.5)
    assert (n.entry.reports.silence, n.killed_at) == ("", None)


@pytest.mark.parametrize(("suspended_s", "is_silent"), [(1.4, True), (1.6, False)])
async def test_a_controller_that_checks_over_a_second_late_waits_for_reports_again(
    n: Node, suspended_s: float, is_silent: bool
) -> None:
    n.well = False
    await asyncio.sleep(9.5)
    suspend(suspended_s)
    await asyncio.sleep(2)
    assert bool(n.entry.reports.silence) is is_silent


async def test_nobody_is_silent_while_the_controller_itself_has_no_broker(n: Node) -> None:
    n.connected, n.hangs, n.process.stopped = False, True, True
    await asyncio.sleep(300)
    assert (n.reason, n.killed_at) == ("", None)


@pytest.mark.parametrize("period_s", [3.0, 0.0])
async def test_an_adopted_worker_that_never_reports_is_silent_as_one_that_reported_at_its_adoption(n: Node) -> None:
    n.entry.adopted, n.entry.info = True, None
    n.entry.reports.last_at = asyncio.get_running_loop().time()
    n.well, n.hangs = False, True
    await asyncio.sleep(9)
    assert n.reason == ""
    await asyncio.sleep(4)
    assert n.reason == SILENT
    await asyncio.sleep(70)
    assert n.killed_at is not None


@pytest.mark.parametrize("status", ["completed", "failed", None])
async def test_a_worker_that_has_ended_or_has_no_process_is_never_silent(n: Node, status: Any) -> None:
    n.well, n.hangs = False, True
    n.error = "the broker refused the connection"
    if status and n.entry.info:
        n.entry.info.status = status
    else:
        n.entry.process, n.entry.info = None, None
    await asyncio.sleep(600)
    assert n.entry.reports == ReportTimes(last_at=n.entry.reports.last_at)
    assert n.killed_at is None


def test_only_a_port_that_takes_a_connection_and_answers_nothing_hangs() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 503 x\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        for handler, hangs in ((mute, True), (answer, False)):
            async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                assert await is_hung(f"http://127.0.0.1:{port}") is hangs
        assert not await is_hung(f"http://127.0.0.1:{port}"), "nobody listens there any more"
        assert not await is_hung("")

    asyncio.run(main())  # in real time


@pytest.mark.parametrize(("answers_after_s", "hangs"), [(0.9, False), (1.1, True)])
async def test_a_health_port_has_a_second_to_answer(
    answers_after_s: float, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[None] = []

    async def read(_: int) -> bytes:
        await asyncio.sleep(answers_after_s)
        return b"H"

    async def connect(*_: object) -> Any:
        writer = SimpleNamespace(write=lambda _: None, close=lambda: closed.append(None))
        return SimpleNamespace(read=read), writer

    monkeypatch.setattr(asyncio, "open_connection", connect)
    assert await is_hung("http://127.0.0.1:5") is hangs
    assert len(closed) == 1


@pytest.mark.parametrize("period_s", [0.0])
async def test_a_worker_without_a_connection_is_named_with_the_cause_until_it_reports(n: Node) -> None:
    info, n.entry.info, n.well = n.entry.info, None, False
    n.error = "the broker refused the connection: Not authorized"
    await asyncio.sleep(2.5)
    assert n.reason == "Starting"
    await asyncio.sleep(1)
    assert n.ages == [3.0]
    phase, reason, message = phase_of(n.entry, asyncio.get_running_loop().time())
    assert (phase, reason, message) == ("Pending", NOT_CONNECTED, n.error)
    n.error = ""
    await asyncio.sleep(2)
    assert n.reason == "Starting"
    n.entry.info = info
    assert n.reason == ""


@pytest.mark.parametrize("period_s", [0.0])
async def test_without_a_connection_of_the_controller_no_worker_is_blamed(n: Node) -> None:
    n.entry.info, n.well, n.connected = None, False, False
    n.error = "no connection"
    await asyncio.sleep(20)
    assert n.reason == "Starting"


async def test_a_silent_worker_that_the_broker_refuses_is_named_with_the_cause(n: Node) -> None:
    n.well, n.error = False, "the broker refused the connection: Not authorized"
    await asyncio.sleep(11.5)
    assert n.ages == [asyncio.get_running_loop().time() - 0.5 - n.entry.reports.last_at]
    assert n.reason == SILENT
    assert n.entry.reports.silence.endswith(f"its connection to the broker ({n.error})")
