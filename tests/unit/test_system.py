"""The parts of the system on one machine: names, labels, the run file and its lock, children that are kept running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halimede.errors import HalimedeError, InvalidFieldError
from services import child as child_module
from services import orphans
from services.__main__ import main
from services.child import Child, Exit
from services.runfile import RunFile
from services.system import labels, parse_nodes

NEVER = asyncio.Event


def test_nodes_get_the_label_of_the_role_in_their_name() -> None:
    assert labels("edge0") == {"node-role.kubernetes.io/edge": ""}
    assert labels("cloud-a") == {"node-role.kubernetes.io/cloud": ""}
    assert labels("factory") == {}


@pytest.mark.parametrize("text", ["", "edge0,", "edge0,edge0", "Edge0", "a/b", "edge 0", "../x", "edge0,#"])
def test_bad_node_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--nodes"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["--nodes", "a/b"], "--nodes: 'a/b'"), (["--port", "0"], "--port: 0"), (["--port", "70000"], "1 and 65535")],
)
def test_wrong_options_are_one_line_and_exit_code_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert part in said
    assert len(said.splitlines()) == 1


def test_without_mosquitto_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys, shutil; shutil.which = lambda *a, **k: None\n"
        f"from services.__main__ import main; sys.exit(main(['--home', {str(tmp_path)!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "apt install mosquitto" in ended.stderr


def test_a_second_system_in_one_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with (
        RunFile(tmp_path),
        pytest.raises(HalimedeError, match=rf"already runs in .* \(pid {os.getpid()}\)"),
        RunFile(tmp_path),
    ):
        pass
    with RunFile(tmp_path):
        pass


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
    monkeypatch.setattr(child_module, "FIRST_PAUSE", 0.01)
    return tmp_path


def make(modules: Path, code: str, exits: list[Exit]) -> Child:
    (modules / "played.py").write_text(code)
    return Child("played", "played", [], modules / "played.log", lambda _, exit_: exits.append(exit_))


async def pid_of(child: Child) -> int:
    async with asyncio.timeout(10):
        while "ready" not in child.last_words():
            await asyncio.sleep(0.01)
    assert child.pid
    return child.pid


async def test_a_child_that_is_killed_comes_back_and_one_that_is_stopped_does_not(modules: Path) -> None:
    exits: list[Exit] = []
    child = make(modules, "import time\nprint('ready', flush=True)\ntime.sleep(60)", exits)
    running = asyncio.create_task(child.run())
    first = await pid_of(child)
    child.log.unlink()
    os.kill(first, signal.SIGKILL)
    assert await pid_of(child) != first
    assert str(exits[0]) == "played ended (signal SIGKILL); starting it again in 0.01 s"
    await child.stop(5, NEVER())
    await asyncio.wait_for(running, 5)
    assert child.pid is None
    assert len(exits) == 1


async def test_a_child_that_keeps_dying_is_started_ever_more_slowly(modules: Path) -> None:
    exits: list[Exit] = []
    child = make(modules, "raise SystemExit(3)", exits)
    running = asyncio.create_task(child.run())
    async with asyncio.timeout(10):
        while len(exits) < 3:
            await asyncio.sleep(0.01)
    await child.stop(5, NEVER())
    await asyncio.wait_for(running, 5)
    assert [exit_.pause for exit_ in exits[:3]] == [0.01, 0.02, 0.04]


@pytest.mark.parametrize("hurried", [True, False])
async def test_a_child_that_does_not_listen_is_killed_at_the_deadline_or_in_a_hurry(
    modules: Path, hurried: bool
) -> None:
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"
    child = make(modules, code, [])
    running = asyncio.create_task(child.run())
    await pid_of(child)
    hurry = asyncio.Event()
    if hurried:
        hurry.set()
    async with asyncio.timeout(10):
        await child.stop(60 if hurried else 0.2, hurry)
        await running
    assert child.pid is None


def test_orphans_become_children_are_reaped_and_ended() -> None:
    # in a process of its own: being a subreaper cannot be undone
    script = """
import asyncio, subprocess, sys, time
from services import orphans
orphans.become_subreaper()
leave = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid)"
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
for body in ("pass", "import time; time.sleep(60)", stubborn):
    subprocess.run([sys.executable, "-c", leave, body], stdout=subprocess.DEVNULL)
time.sleep(0.5)
orphans.reap([])
assert len(orphans.children()) == 2, orphans.children()
assert asyncio.run(orphans.end(lambda: [], 1.0, asyncio.Event())) == 2
assert not orphans.children()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0, ended.stderr


def test_own_children_are_not_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid in orphans.children()
        orphans.reap({process.pid})
        assert process.wait() == 7
