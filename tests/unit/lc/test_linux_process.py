"""Real processes: started as asked, told apart from all others, ended with everything that they started."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from halimede.names import Key
from services.lc.paths import NodePaths, Worker
from services.lc.supervisor import linux_process
from services.lc.supervisor.linux_process import LinuxLauncher, start_ticks
from services.lc.supervisor.process import NeededPath, Process, ProcessSpec, Start, StartError
from tests.simulated import eventually

WORKER = Worker("default", "w")


#: lines of a worker's log
DOWN = '{"event": "bus down", "timestamp": "2026-01-01T00:00:10.5Z", "reason": "Not authorized", "client": "w"}'
UP = '{"event": "bus connected", "timestamp": "2026-01-01T00:00:11Z", "client": "w"}'
LOADED = '{"event": "model loaded", "timestamp": "2026-01-01T00:00:12Z"}'
WITHOUT_TIME = '{"event": "bus down", "timestamp": "x", "reason": "y"}'
BEFORE, AFTER = datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    ("lines", "began", "error"),
    [
        ((DOWN, LOADED, "print of a script", ""), BEFORE, True),
        ((UP, DOWN), BEFORE, True),
        ((DOWN, UP), BEFORE, False),
        ((DOWN,), AFTER, False),
        ((DOWN,), datetime(2026, 1, 1, 0, 0, 10, 500_000, tzinfo=UTC), True),
        ((DOWN,), datetime(2026, 1, 1, 0, 0, 10, 500_001, tzinfo=UTC), False),
        (('{"event": "bus down"', "{}", "[1]", WITHOUT_TIME), BEFORE, False),
        ((), BEFORE, False),
    ],
)
def test_why_a_worker_has_no_connection_is_read_from_its_log(
    lines: tuple[str, ...], began: datetime, error: bool
) -> None:
    assert linux_process.connection_error("\n".join(lines), began) == ("Not authorized" if error else "")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Running:
    """A launcher, and everything that it started."""

    def __init__(self, folder: Path) -> None:
        self.folders = NodePaths(folder, "edge0")
        self.launcher = LinuxLauncher(self.folders, {"PATH": os.environ["PATH"], "SECRET": "x", "HALIMEDE_LOG": "json"})
        self.processes: list[Process] = []

    def start(self, *argv: str, worker: Worker = WORKER, **spec: Any) -> Process:
        made = ProcessSpec(argv, spec.pop("env", {}), spec.pop("cwd", "/"), **spec)
        service = Key("jointinferenceservices", "default", "s")
        process = self.launcher.start(Start(worker, service, "u1", "edge", made))
        self.processes.append(process)
        return process

    def python(self, code: str, **spec: Any) -> Process:
        return self.start(sys.executable, "-c", code, **spec)

    @property
    def log(self) -> str:
        return self.folders.log(WORKER).read_text()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    yield made
    for process in made.processes:
        process.kill()


async def test_the_exit_code_is_told(running: Running) -> None:
    assert await running.python("raise SystemExit(7)").wait() == 7
    process = running.python("import time; time.sleep(60)")
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def test_a_folder_that_may_be_made_is_made_once_and_one_that_must_exist_is_not(
    running: Running, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    with pytest.raises(StartError, match="there is no folder at"):
        running.start("/bin/true", paths=(NeededPath(str(folder), "folder"),))
    for _ in range(2):
        await running.start("/bin/true", paths=(NeededPath(str(folder), "folder", create=True),)).wait()
    assert folder.is_dir()


async def test_a_process_that_a_signal_has_stopped_is_told_from_one_that_runs(running: Running) -> None:
    process = running.python("import time; time.sleep(60)")
    assert not process.stopped
    os.kill(process.record.pid, signal.SIGSTOP)
    await eventually(lambda: process.stopped)
    os.kill(process.record.pid, signal.SIGCONT)
    await eventually(lambda: not process.stopped)


async def test_a_connection_error_counts_if_it_is_younger_than_the_worker(running: Running) -> None:
    now = datetime.now(UTC)
    line = DOWN.replace("2026-01-01T00:00:10.5Z", (now - timedelta(seconds=30)).isoformat())
    await running.start("/bin/echo", line).wait()
    assert running.launcher.connection_error(WORKER, 60.0) == "Not authorized"
    assert running.launcher.connection_error(WORKER, 5.0) == ""


async def test_output_and_errors_are_appended_to_the_log(running: Running) -> None:
    await running.python("print('one')").wait()
    await running.python("import sys; print('two', file=sys.stderr)").wait()
    assert (running.log, running.launcher.last_line(WORKER)) == ("one\ntwo\n", "two")
    assert running.launcher.last_line(Worker("default", "other")) == ""


async def test_the_last_line_is_the_last_that_says_something_and_is_cut(running: Running) -> None:
    await running.python("print('x' * 9000); print(); print('  ')").wait()
    assert running.launcher.last_line(WORKER) == "x" * 500


async def test_a_worker_sees_what_it_is_told_and_not_the_rest(running: Running) -> None:
    await running.python("import os; print(sorted(os.environ))", env={"WORKER_NAME": "w"}).wait()
    names = set(msgspec.json.decode(running.log.replace("'", '"')))
    assert {"PATH", "WORKER_NAME", "HALIMEDE_LOG", linux_process.RECORD_VARIABLE} <= names
    assert "SECRET" not in names
    told = {"HALIMEDE_BROKER": "b", "HALIMEDE_X": "1", "LANG": "C", "OTEL_TRACES_EXPORTER": "otlp"}
    assert linux_process.inherited_variables({**told, "AWS_SECRET": "2", "HALIMEDE_CREDENTIALS": "/lc"}) == told


async def test_a_worker_leads_a_group_of_its_own_and_has_no_input(running: Running) -> None:
    process = running.python("import os, sys; print(os.getpgid(0) == os.getpid(), repr(sys.stdin.read()))")
    await process.wait()
    assert running.log == "True ''\n"


async def test_the_memory_limit_holds(running: Running) -> None:
    limit = 200 * 1024**2
    process = running.python("import time; time.sleep(0.5); bytearray(10**9)", memory_bytes=limit)
    assert resource.prlimit(process.record.pid, resource.RLIMIT_DATA) == (limit, limit)
    assert await process.wait() == 1
    assert running.launcher.last_line(WORKER) == "MemoryError"


@pytest.mark.parametrize(("env", "least"), [({}, 0), ({"TRAINING": "{}"}, 19)])
async def test_processes_of_a_training_go_after_others(running: Running, env: dict[str, str], least: int) -> None:
    process = running.python("import time; time.sleep(60)", env=env)
    niceness = max(least, os.getpriority(os.PRIO_PROCESS, 0))
    assert os.getpriority(os.PRIO_PROCESS, process.record.pid) == niceness


async def test_a_worker_with_a_share_of_a_core_starts_before_it_keeps_the_share(running: Running) -> None:
    process = running.start(sys.executable, "-m", "halimede", "worker", env={"TRAINING": "{}"})
    niceness = max(10, os.getpriority(os.PRIO_PROCESS, 0))
    assert os.getpriority(os.PRIO_PROCESS, process.record.pid) == niceness


async def test_a_script_whose_priority_nobody_can_raise_starts_where_it_gets_its_share(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halimede.system.process_limits.can_raise_priority", lambda: False)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    for training, least in (("{}", 10), ('{"cpuShare": 0}', 19)):
        process = running.python("import time; time.sleep(60)", env={"TRAINING": training})
        assert os.getpriority(os.PRIO_PROCESS, process.record.pid) == max(least, niceness)


@pytest.mark.parametrize(
    ("training", "has_share"),
    [("{}", True), ('{"cpuShare": 0.2}', True), ('{"cpuShare": 0}', False), ("own", False), ("[]", False)],
)
def test_processes_of_a_training_have_a_share_unless_it_is_0(training: str, has_share: bool) -> None:
    assert ProcessSpec((sys.executable, "train.py"), {"TRAINING": training}, "/").has_share == has_share


async def test_what_a_worker_started_ends_with_it(running: Running) -> None:
    process = running.start("sh", "-c", "sleep 600 & echo $! ; wait")
    await eventually(lambda: running.log.endswith("\n"))
    child = int(running.log)
    os.kill(process.record.pid, signal.SIGKILL)
    await process.wait()
    await eventually(lambda: start_ticks(child) is None)


async def test_a_running_worker_is_found_again_by_its_record(running: Running) -> None:
    process = running.python("import time; time.sleep(60)")
    (found,) = LinuxLauncher(running.folders).find([process.record])
    assert found.record == process.record
    found.terminate()
    assert await process.wait() == -signal.SIGTERM
    assert await found.wait() is None


async def test_a_running_worker_is_found_again_without_a_record(running: Running) -> None:
    # the child leads a group as well, and inherits the record with the environment
    child = "print(subprocess.Popen(['sleep', '60'], process_group=0).pid, flush=True)"
    process = running.python(f"import subprocess; {child}; subprocess.run(['sleep', '60'])")
    await eventually(lambda: running.log.endswith("\n"))
    try:
        with capture_logs() as logs:
            (found,) = LinuxLauncher(running.folders).find([])
        assert found.record == process.record
        assert logs == []
    finally:
        os.kill(int(running.log), signal.SIGKILL)


async def test_another_node_finds_nothing(running: Running, tmp_path: Path) -> None:
    running.python("import time; time.sleep(60)")
    assert LinuxLauncher(NodePaths(tmp_path, "edge1")).find([]) == []
    assert LinuxLauncher(NodePaths(tmp_path / "other", "edge0")).find([]) == []


@pytest.mark.parametrize("change", [{"ticks": 1}, {"boot": "another"}, {"pid": 4_000_000}])
async def test_another_process_with_that_pid_is_not_taken_for_the_worker(
    running: Running, change: dict[str, Any]
) -> None:
    stranger = subprocess.Popen(["sleep", "60"])  # it returns at once
    try:
        process = running.python("pass")
        await process.wait()
        ticks = start_ticks(stranger.pid)
        record = msgspec.structs.replace(process.record, **({"pid": stranger.pid, "ticks": ticks} | change))
        assert LinuxLauncher(running.folders).find([record]) == []
    finally:
        stranger.kill()
        await asyncio.to_thread(stranger.wait)


async def test_of_two_processes_of_a_worker_one_is_found_and_the_other_left_alone(running: Running) -> None:
    first, second = running.python("import time; time.sleep(60)"), running.python("import time; time.sleep(60)")
    with capture_logs() as logs:
        (found,) = LinuxLauncher(running.folders).find([second.record])
    assert found.record == second.record
    assert [entry["pid"] for entry in logs] == [first.record.pid]
    assert start_ticks(first.record.pid)


@pytest.mark.parametrize(
    ("argv", "spec", "reason", "says"),
    [
        (["/no/such/command"], {}, "CommandNotFound", "/no/such/command"),
        (["/etc/passwd"], {}, "CommandNotFound", "Permission denied"),
        (["true"], {"cwd": "/no/such/folder"}, "WorkingDirMissing", "/no/such/folder"),
        (["true"], {"paths": (NeededPath("/no/such/path"),)}, "HostPathMissing", "there is nothing at /no/such/path"),
        (["true"], {"paths": (NeededPath("/etc/passwd", "folder"),)}, "HostPathMissing", "no folder at /etc/passwd"),
        (["true"], {"paths": (NeededPath("/etc", "file"),)}, "HostPathMissing", "no file at /etc"),
        (["true", "a\0b"], {}, "CannotStart", "true could not be started: embedded null byte"),
        (["true"], {"env": {"LABELS": "x" * 200_000}}, "CannotStart", "Argument list too long"),
    ],
)
async def test_what_cannot_be_started_says_why(
    running: Running, argv: list[str], spec: dict[str, Any], reason: str, says: str
) -> None:
    with pytest.raises(StartError, match=says) as caught:
        running.start(*argv, **spec)
    assert caught.value.reason == reason


@pytest.mark.parametrize("breaks", ["prlimit", "pidfd_open"])
async def test_a_process_that_cannot_be_limited_or_watched_is_ended(
    running: Running, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OverflowError("int too big to convert")

    open_before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(resource if breaks == "prlimit" else os, breaks, broken)
        with pytest.raises(StartError) as caught:
            running.start("sleep", "600", memory_bytes=10**9)
    assert caught.value.reason == "CannotStart"
    assert str(caught.value).startswith("sleep could not get its limits: int too big")
    assert open_files() == open_before
    assert LinuxLauncher(running.folders).find([]) == []


async def test_waiting_that_is_given_up_closes_what_it_watched(running: Running) -> None:
    open_before = open_files()
    process = running.python("import time; time.sleep(60)")
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert open_files() == open_before
    assert start_ticks(process.record.pid)
