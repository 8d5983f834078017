"""The parts of the system on one machine: names, labels, the run file and its lock, children that are kept running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from filelock import FileLock

from halimede.errors import HalimedeError, InvalidFieldError
from services import processes
from services import system as system_module
from services.lc.paths import NodePaths
from services.lc.supervisor.linux_process import RECORD_VARIABLE
from services.main import main
from services.processes import Child, Exit
from services.system import (
    RunFile,
    System,
    SystemLayout,
    labels_of,
    parse_nodes,
    rows_of_earlier_nodes,
    rows_of_example,
)
from tests.programs import run_python
from tests.waiting import eventually, patience

NEVER = asyncio.Event


def test_nodes_of_an_earlier_run_are_named_with_the_command_that_forgets_them(tmp_path: Path) -> None:
    for node in ("edge0", "edge1"):
        (tmp_path / "nodes" / node).mkdir(parents=True)
    ((_, text),) = rows_of_earlier_nodes(tmp_path, ["edge0", "cloud0"])
    assert text.endswith("halimede delete node edge1")
    assert rows_of_earlier_nodes(tmp_path / "new", ["edge0"]) == []


def test_the_first_command_to_try_exports_a_home_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (title, exported), *rows = rows_of_example(tmp_path / "my system")
    assert (title, exported) == ("try", f"export HALIMEDE_HOME='{tmp_path}/my system'")
    monkeypatch.setenv("HOME", str(tmp_path))
    of_default = rows_of_example(tmp_path / ".local" / "state" / "halimede")
    assert [command for _, command in of_default] == [command for _, command in rows]
    assert [title for title, _ in of_default] == ["try", "", ""]


def test_nodes_get_the_label_of_the_role_in_their_name() -> None:
    assert labels_of("edge0") == {"node-role.kubernetes.io/edge": ""}
    assert labels_of("cloud-a") == {"node-role.kubernetes.io/cloud": ""}
    assert labels_of("factory") == {}


@pytest.mark.parametrize("text", ["", "edge0,", "edge0,edge0", "Edge0", "a/b", "edge 0", "../x", "edge0,#"])
def test_bad_node_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--nodes"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--nodes", "a/b"], "--nodes: 'a/b'"),
        (["--port", "0"], "--port: 0"),
        (["--port", "70000"], "1 and 65535"),
        (["--fetch-allow", "10.0.0.1/8"], "--fetch-allow: '10.0.0.1/8'"),
    ],
)
def test_a_wrong_option_is_a_line_and_code_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def test_without_mosquitto_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys, shutil; shutil.which = lambda *a, **k: None\n"
        f"from services.main import main; sys.exit(main(['--home', {str(tmp_path)!r}]))"
    )
    ended = run_python("-c", script)
    assert ended.returncode == 2
    assert "apt install mosquitto" in ended.stderr


def test_the_run_file_is_there_while_it_runs_and_gone_afterwards(tmp_path: Path) -> None:
    with RunFile(tmp_path) as file:
        file.write("mqtt://127.0.0.1:1883", ["edge0"])
        content = json.loads((tmp_path / "run.json").read_text())
        assert content["broker"] == "mqtt://127.0.0.1:1883"
        assert (content["pid"], content["nodes"]) == (os.getpid(), ["edge0"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HalimedeError, match="--home"), RunFile(tmp_path / "file" / "below"):
        pass


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that children can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.01)
    return tmp_path


def make(modules: Path, code: str, exits: list[Exit]) -> Child:
    (modules / "played.py").write_text(code)
    command = [sys.executable, "-m", "played"]
    return Child("played", command, modules / "played.log", lambda _, exit_: exits.append(exit_))


async def pid_of(child: Child) -> int:
    await eventually(lambda: "ready" in child.log_tail(), 10)
    assert child.pid
    return child.pid


#: of a child that runs until it is ended
READY = "print('ready', flush=True)\ntime.sleep(60)"


@contextlib.asynccontextmanager
async def kept_running(child: Child) -> AsyncIterator[None]:
    """Run a child, and stop it at the end of the block."""
    running = asyncio.create_task(child.run())
    try:
        yield
    finally:
        await child.stop(5, NEVER())
        async with asyncio.timeout(patience(5)):
            await running


async def test_a_child_that_is_killed_comes_back_and_one_that_is_stopped_does_not(modules: Path) -> None:
    exits: list[Exit] = []
    child = make(modules, f"import time\n{READY}", exits)
    async with kept_running(child):
        first = await pid_of(child)
        child.log.unlink()
        os.kill(first, signal.SIGKILL)
        assert await pid_of(child) != first
        assert str(exits[0]) == "played ended (signal SIGKILL); restarting it in 0.01 s"
    assert child.pid is None
    assert len(exits) == 1


async def test_a_child_that_keeps_dying_is_started_ever_more_slowly(modules: Path) -> None:
    exits: list[Exit] = []
    async with kept_running(make(modules, "raise SystemExit(3)", exits)):
        await eventually(lambda: len(exits) >= 3, 10)
    assert [exit_.pause for exit_ in exits[:3]] == [0.01, 0.02, 0.04]


async def test_a_child_that_cannot_be_forked_is_tried_again(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[Exit] = []
    child = make(modules, f"import time\n{READY}", exits)
    failures: list[Exception] = [BlockingIOError(11, "Resource temporarily unavailable")]
    failures.append(subprocess.SubprocessError("preexec_fn"))
    spawn = processes.spawn  # type: ignore[attr-defined]
    monkeypatch.setattr(processes, "spawn", lambda *args: _raise(failures.pop()) if failures else spawn(*args))
    async with kept_running(child):
        assert await pid_of(child)
    refused = "[Errno 11] Resource temporarily unavailable"
    assert str(exits[1]) == f"played could not be started ({refused}); retrying in 0.02 s"


def _raise(error: Exception) -> subprocess.Popen[bytes]:
    raise error


async def test_a_child_whose_log_cannot_be_written_says_so_at_once(modules: Path) -> None:
    (modules / "file").write_text("")
    child = Child("played", ["true"], modules / "file" / "played.log", lambda *_: None)
    with pytest.raises(HalimedeError, match="--home"):
        await child.run()


@pytest.mark.parametrize("hurried", [True, False])
async def test_a_child_that_does_not_listen_is_killed_at_a_deadline_or_in_a_hurry(modules: Path, hurried: bool) -> None:
    child = make(modules, f"import signal, time\nsignal.signal(15, signal.SIG_IGN)\n{READY}", [])
    running = asyncio.create_task(child.run())
    await pid_of(child)
    hurry = asyncio.Event()
    if hurried:
        hurry.set()
    async with asyncio.timeout(patience(10)):
        await child.stop(60 if hurried else 0.2, hurry)
        await running
    assert child.pid is None


def test_orphans_become_children_are_reaped_and_ended() -> None:
    # in a process of its own: being a subreaper cannot be undone
    script = """
import asyncio, subprocess, sys, time
from services import processes
from services import system as system_module
processes.become_subreaper()
leave = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid)"
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
for body in (stubborn, "import time; time.sleep(60)", "pass"):
    subprocess.run([sys.executable, "-c", leave, body], stdout=subprocess.DEVNULL)
until = time.monotonic() + float(sys.argv[1])
while len(processes.children()) != 2:  # the last one ends by itself
    assert time.monotonic() < until, processes.children()
    time.sleep(0.05)
    processes.reap_orphans([])
assert asyncio.run(processes.end_orphans(lambda: [], 1.0, asyncio.Event())) == 2
assert not processes.children()
"""
    ended = run_python("-c", script, str(patience(20)))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("folder", ["logs", "broker", "run.json"])
def test_a_file_in_the_way_is_one_line_that_says_what_to_do(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir() if folder == "run.json" else (tmp_path / folder).touch()
    # in a process of its own: being a subreaper cannot be undone
    ended = run_python("-m", "halimede", "up", "--home", tmp_path, "--nodes", "edge0")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Error: {tmp_path / folder}")
    assert "free some space" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_reader_who_has_gone_keeps_nothing_from_being_done() -> None:
    script = "from services.main import _print\nfor n in range(3): _print('word')\nimport sys; sys.exit(7)"
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, timeout=patience(30), check=False
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (7, b"")


async def test_a_long_log_is_put_aside_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_module, "MAX_LOG", 10)
    monkeypatch.setattr(system_module, "LOG_CHECK_S", 0.01)
    with RunFile(tmp_path) as run_file:
        system = System(SystemLayout(tmp_path, ["edge0"]), run_file, lambda _: None)
        system._make_children()
        logs = [system._broker.log, tmp_path / "logs" / "gm.log", tmp_path / "logs" / "lc-edge0.log"]
        rotating = asyncio.create_task(system._rotate_logs())
        for log in logs:
            log.parent.mkdir(exist_ok=True)
            with log.open("ab", buffering=0) as file:
                file.write(b"a long line\n")
                await eventually(lambda log=log: not log.stat().st_size, 5)
                file.write(b"short\n")
            assert log.read_bytes() == b"short\n"
            assert log.with_name(f"{log.name}.1").read_bytes() == b"a long line\n"
        system._stopping.set()
        async with asyncio.timeout(patience(5)):
            await rotating


async def test_whoever_is_waited_for_is_named_and_gets_its_time(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_module, "REMAINING_REPORT_S", 0.1)
    slow = f"import signal, time, sys\nsignal.signal(15, lambda *_: (time.sleep(0.5), sys.exit(0)))\n{READY}"
    said: list[str] = []
    child = make(modules, slow, [])
    with RunFile(modules / "home") as run_file, subprocess.Popen(["sleep", "60"]) as stranger:
        system = System(SystemLayout(modules, ["edge0"]), run_file, said.append)
        system._lcs = [child]
        running = asyncio.create_task(child.run())
        await pid_of(child)
        await system._stop(asyncio.Event())
        await running
        assert stranger.poll() is None, "a child from before the system is not the system's to end"
        stranger.kill()
    assert any(line.startswith("waiting for played: ") for line in said)
    assert (said[-1], system_module.LC_STOP >= 120) == ("stopped: all processes have ended", True)


def worker_of(home: Path, node: str, code: str = "") -> subprocess.Popen[bytes]:
    """Start what looks like a worker of a node, and wait until it runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal, time\n{code}\n{READY}"],
        env={**os.environ, "HALIMEDE_PROCESS": f"{home}/nodes/{node} {{}}"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


async def test_workers_of_nodes_that_are_not_run_any_more_are_ended_and_no_others(tmp_path: Path) -> None:
    home = tmp_path / "home"
    stubborn = worker_of(home, "edge9", "signal.signal(15, signal.SIG_IGN)")
    stray, with_lc = worker_of(home, "edge8"), worker_of(home, "edge7")
    kept, foreign = worker_of(home, "edge0"), worker_of(tmp_path / "other", "edge9")
    lock = home / "nodes" / "edge7" / "lc.lock"
    lock.parent.mkdir(parents=True)
    every = [stubborn, stray, with_lc, kept, foreign]
    try:
        with FileLock(lock):
            assert await processes.end_strays(home, ["edge0"], patience(0.4), asyncio.Event()) == 2
            assert stray.wait(patience(5)) == -signal.SIGTERM
            assert stubborn.wait(patience(5)) == -signal.SIGKILL
            assert [process.poll() for process in (with_lc, kept, foreign)] == [None] * 3
        assert await processes.end_strays(home, (), patience(0.4), asyncio.Event()) == 2
        assert foreign.poll() is None
    finally:
        for process in every:
            process.kill()
            process.communicate()


def test_the_mark_and_the_lock_are_those_of_local_controllers(tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    assert processes.RECORD_VARIABLE == RECORD_VARIABLE
    assert (folders.root, folders.lock) == (tmp_path / "nodes" / "edge0", folders.root / "lc.lock")


def test_own_children_are_not_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid in processes.children()
        processes.reap_orphans({process.pid})
        assert process.wait() == 7
