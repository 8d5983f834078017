"""``halimede up``: one command brings everything up, keeps it up, and takes everything down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_port
from tests.programs import run_python
from tests.typed import halimede
from tests.waiting import patience, wait_for

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)


class Up:
    """A running system in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**os.environ, "HALIMEDE_HOME": str(home), "HALIMEDE_BROKER": ""}
        command = [sys.executable, "-m", "halimede", "up", "--nodes", "edge0,cloud0", "--port", str(free_port())]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    @property
    def run_file(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.home / "run.json").read_text())
            return found
        return {}

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, *words: str) -> psutil.Process | None:
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                if set(words) <= set(process.cmdline()):
                    return process
        return None

    def halimede(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return halimede(*arguments, env=self.environment)

    def end(self) -> None:
        """However a test ended: nothing of this system stays."""
        with contextlib.suppress(psutil.Error):
            every = [*self.descendants(), psutil.Process(self.process.pid)]
            for process in every:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.wait()


@contextlib.contextmanager
def brought_up(home: Path) -> Iterator[Up]:
    system = Up(home)
    try:
        wait_for(lambda: system.run_file or system.process.poll() is not None, 40)
        yield system
    finally:
        system.end()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A system for a test that ends it."""
    with brought_up(tmp_path / "home") as system:
        yield system


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One for all tests after which it still stands."""
    with brought_up(tmp_path_factory.mktemp("standing") / "home") as system:
        yield system


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.mark.parametrize("whole_group", [False, True], ids=["SIGINT", "Ctrl-C on a terminal"])
def test_it_comes_up_says_where_everything_is_and_ctrl_c_leaves_nothing(up: Up, whole_group: bool) -> None:
    assert up.run_file["pid"] == up.process.pid
    assert up.run_file["nodes"] == ["edge0", "cloud0"]
    nodes = {node["name"]: node for node in json.loads(up.halimede("nodes", "-o", "json").stdout)}
    assert {name: node["online"] for name, node in nodes.items()} == {"edge0": True, "cloud0": True}
    assert nodes["edge0"]["labels"] == {"node-role.kubernetes.io/edge": ""}
    refused = up.halimede("delete", "node", "edge0")
    assert (refused.returncode, "node edge0 is online" in refused.stderr) == (1, True)
    assert "there is no node edge9" in up.halimede("delete", "node/edge9").stderr
    assert up.halimede("delete", "node", "edge9", "--ignore-not-found").returncode == 0
    every = up.descendants()
    assert len(every) >= 4

    if whole_group:
        os.killpg(up.process.pid, signal.SIGINT)
    else:
        up.process.send_signal(signal.SIGINT)
    said, _ = up.process.communicate(timeout=patience(40))
    assert up.process.returncode == 0
    assert gone(every)
    assert not up.run_file
    for part in (
        "halimede is up", str(up.home / "run.json"), "mosquitto_sub", f"export HALIMEDE_HOME={up.home}",
        "halimede apply", "all processes have ended",
    ):  # fmt: skip
        assert part in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_gm_lc_and_broker_come_back_when_they_are_killed(standing: Up) -> None:
    for words in (("halimede", "gm"), ("halimede", "lc", "edge0"), ("halimede", "lc", "cloud0")):
        before = standing.child(*words)
        assert before
        before.kill()
        wait_for(lambda w=words, b=before: (found := standing.child(*w)) and found.pid != b.pid, 20)
    broker = next(p for p in standing.descendants() if p.name() == "mosquitto")
    broker.kill()

    def healed() -> bool:
        answered = standing.halimede("nodes", "-o", "json")
        return answered.returncode == 0 and [n["online"] for n in json.loads(answered.stdout)] == [True, True]

    wait_for(healed, 60)


def test_a_second_one_on_the_same_folder_is_refused_and_the_first_goes_on(standing: Up) -> None:
    second = run_python("-m", "halimede", "up", cwd=ROOT, env=standing.environment)
    assert second.returncode == 1
    assert second.stderr == (
        f"Error: a system already runs in {standing.home} (pid {standing.process.pid}): stop it first, or choose "
        "another --home\n"
    )
    assert standing.run_file["pid"] == standing.process.pid


@pytest.mark.slow
def test_workers_whose_lc_was_killed_are_ended_with_the_system(up: Up) -> None:
    models = ROOT / "examples" / "digits" / "models"
    if not (models / "small.onnx").exists():
        pytest.skip("`make train` has not been run")
    assert up.halimede("apply", "-f", "examples/digits").returncode == 0
    wait_for(lambda: up.child("halimede", "worker", "edge") and up.child("halimede", "worker", "cloud"), 40)
    every = up.descendants()
    for node in ("edge0", "cloud0"):
        lc = up.child("halimede", "lc", node)
        assert lc
        lc.kill()
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(timeout=patience(40)) == 0
    assert gone(every)


@pytest.mark.slow
def test_when_the_whole_system_is_killed_its_services_end_too(up: Up) -> None:
    every = up.descendants()
    up.process.kill()
    wait_for(lambda: gone(every), 60)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = run_python("-m", "halimede", "up", "--home", tmp_path, "--port", str(port), cwd=ROOT)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"Error: port: {port} is not accepted: it is in use")
    assert len(ended.stderr.splitlines()) == 1


def test_a_service_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "gm").mkdir()
    (tmp_path / "gm" / "store.db").mkdir()  # no file can be there
    system = Up(tmp_path)
    try:
        said, _ = system.process.communicate(timeout=patience(60))
    finally:
        system.end()
    assert system.process.returncode == 1
    assert "gm does not start: halimede gm:" in said
    assert "Traceback" not in said
