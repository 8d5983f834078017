"""``python -m halimede.models``: what init containers run."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import structlog

from halimede.models import materialize
from halimede.models.__main__ import MISTAKE, OWN_CACHE, TEMPORARY, main
from tests.unit.models.archives import FILES, tar
from tests.waiting import patience

BODY = os.urandom(300_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
ROOT = Path(__file__).parents[3]


class Origin(ThreadingHTTPServer):
    """Answers with these statuses, one after the other, and then with the model."""

    daemon_threads = True
    statuses: list[int]
    asked = 0
    holds = False


class Handler(BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        self.server.asked += 1
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(BODY)) if status == 200 else "0")
        self.end_headers()
        if status == 200:
            self.wfile.write(BODY[:1000])
            self.wfile.flush()
            if self.server.holds:
                time.sleep(60)
            self.wfile.write(BODY[1000:])

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """What a command sets up is of its own process otherwise."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def origin() -> Iterator[Origin]:
    server = Origin(("127.0.0.1", 0), Handler)
    server.statuses = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def url(origin: Origin) -> str:
    return f"http://user:hunter2@127.0.0.1:{origin.server_address[1]}/small.onnx?token=hunter3"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "models.example" / "small.onnx"


@pytest.fixture
def ending(tmp_path: Path) -> Path:
    """The file whose text Kubernetes shows of a container that has ended."""
    path = tmp_path / "termination-log"
    path.touch()
    return path


def modes(path: Path) -> tuple[int, int]:
    return path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777


def test_a_model_comes_through_the_cache_to_its_place(origin: Origin, out: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old = os.umask(0o077)
    try:
        assert main(["--url", url(origin), "--sha256", DIGEST, "--cache", str(cache), "--out", str(out)]) == 0
    finally:
        os.umask(old)
    cached = cache / "sha256" / DIGEST
    assert out.read_bytes() == cached.read_bytes() == BODY
    assert modes(out) == (0o444, 0o755)
    assert modes(cached) == (0o400, 0o700)
    assert out.stat().st_ino != cached.stat().st_ino  # who may write to one cannot change the other
    assert sorted(path.name for path in out.parent.iterdir()) == ["small.onnx"]


def test_a_second_pod_of_the_node_downloads_nothing(origin: Origin, out: Path, tmp_path: Path) -> None:
    for _ in range(2):  # over what is there already, as after a reboot
        assert main(["--url", url(origin), "--sha256", DIGEST, "--cache", str(tmp_path / "c"), "--out", str(out)]) == 0
    assert origin.asked == 1


def test_a_cache_that_cannot_be_written_is_done_without(
    origin: Origin, out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("not a folder")  # root may write to any folder
    arguments = ["--url", url(origin), "--sha256", DIGEST, "--cache", str(tmp_path / "cache"), "--out", str(out)]
    assert main(arguments) == 0
    assert out.read_bytes() == BODY
    assert not (out.parent / OWN_CACHE).exists()
    assert capfd.readouterr().err.count("without the node's cache") == 1


def readable(path: Path, uid: int) -> bool:
    """Say whether another user can read a file."""
    code = (
        f"import os, pathlib; os.setgid({uid}); os.setuid({uid}); print(len(pathlib.Path({str(path)!r}).read_bytes()))"
    )
    return (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=patience(60)).returncode
        == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("usable", [True, False])
def test_other_users_can_read_it_with_and_without_a_cache(usable: bool, origin: Origin) -> None:
    """The worker's uid is not the fetcher's. pytest's own folders let nobody pass."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        out, cache = home / "downloads" / "models.example" / "deep" / "small.onnx", home / "cache"
        if not usable:
            cache.touch()
        arguments = ["--url", url(origin), "--cache", str(cache), "--out", str(out)]
        subprocess.run(
            [sys.executable, "-m", "halimede.models", *arguments], cwd=ROOT, check=True, timeout=patience(60)
        )
        assert modes(out) == (0o444, 0o755)
        assert modes(out.parent) == (0o755, 0o755)
        assert [path.name for path in out.parent.iterdir()] == ["small.onnx"]
        if os.geteuid() == 0:
            assert readable(out, 65534)
            assert not any(readable(path, 65534) for path in cache.rglob("sha256/*"))


def test_temporary_failures_are_tried_again(origin: Origin, out: Path, tmp_path: Path) -> None:
    origin.statuses = [503, 503]
    assert main(["--url", url(origin), "--cache", str(tmp_path / "c"), "--out", str(out)]) == 0
    assert origin.asked == 3


def test_patience_ends(
    origin: Origin, out: Path, ending: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    origin.statuses = [503] * 100
    arguments = ["--url", url(origin), "--cache", str(tmp_path / "c"), "--out", str(out), "--patience", "5"]
    assert main(arguments, ending) == TEMPORARY
    assert 1 < origin.asked < 8
    assert "HTTPStatus" in ending.read_text()
    assert "503" in ending.read_text()
    said = capfd.readouterr().err + ending.read_text()
    assert "hunter" not in said
    assert not out.exists()


def test_a_mistake_is_not_tried_again(origin: Origin, out: Path, ending: Path, tmp_path: Path) -> None:
    ending.write_text("a longer text of an earlier container " * 100)
    arguments = ["--url", url(origin), "--sha256", "0" * 64, "--cache", str(tmp_path / "c"), "--out", str(out)]
    assert main(arguments, ending) == MISTAKE
    assert origin.asked == 1
    assert DIGEST in ending.read_text()
    assert "earlier" not in ending.read_text()
    assert not out.exists()


def test_no_termination_log_is_made(tmp_path: Path) -> None:
    assert main(["--url", "/none", "--check"], tmp_path / "none") == MISTAKE
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--url", "/x"], "--out"),
        (["--url", "/x", "--out", "/tmp/x"], "--out"),
        (["--url", "/x", "--check", "--sha256", "abc"], "--sha256"),
        (["--url", "/x", "--check", "--patience", "-1"], "--patience"),
        (["--url", "/x", "--check", "--patience", "nan"], "--patience"),
        (["--url", "/x", "--check", "--allow", "10.0.0.1/8"], "--allow"),
        (["--url", "https://u:hunter2@h/x", "--check"], "--url"),
    ],
)
def test_a_mistaken_command_line_is_said(arguments: list[str], named: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == MISTAKE
    said = capfd.readouterr().err
    assert named in said
    assert "hunter2" not in said


def test_check_reads_and_brings_nothing(tmp_path: Path, ending: Path) -> None:
    model = tmp_path / "a model.onnx"
    model.write_bytes(BODY)
    for given in (str(model), f"file://{tmp_path}/a%20model.onnx"):
        assert main(["--url", given, "--check"]) == 0
        assert main(["--url", given, "--check", "--sha256", DIGEST]) == 0
    assert main(["--url", str(model), "--check", "--sha256", "0" * 64], ending) == MISTAKE
    assert DIGEST in ending.read_text()
    for wrong, reason in ((tmp_path / "none", "NotFound"), (tmp_path, "NotAFile"), (ending, "EmptyFile")):
        ending.write_text("")
        assert main(["--url", str(wrong), "--check"], ending) == MISTAKE
        assert reason in ending.read_text()


def test_an_archive_becomes_the_folder_that_is_in_it(tmp_path: Path, out: Path) -> None:
    archive = tmp_path / "model.tar.gz"
    archive.write_bytes(tar(FILES))
    for _ in range(2):  # over what is there already
        assert main(["--url", str(archive), "--cache", str(tmp_path / "c"), "--out", str(out), "--unpack"]) == 0
        found = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
        assert {name: path.read_bytes() for name, path in found.items()} == FILES
        assert {modes(path) for path in found.values()} == {(0o444, 0o755)}
        assert [path.name for path in out.parent.iterdir()] == [out.name]
    single = out.with_name("single.onnx")
    model = tmp_path / "model.onnx"
    model.write_bytes(BODY)
    assert main(["--url", str(model), "--cache", str(tmp_path / "c"), "--out", str(single), "--unpack"]) == 0
    assert single.read_bytes() == BODY


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, ending: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(BODY)
    (tmp_path / "file").touch()
    arguments = ["--url", str(model), "--cache", str(tmp_path / "c"), "--out", str(tmp_path / "file" / "x")]
    assert main([*arguments, "--patience", "0"], ending) == TEMPORARY
    assert "NotWritable" in ending.read_text()


def test_what_a_killed_one_left_is_written_over(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(BODY)
    (tmp_path / ".target.new").write_bytes(b"half")
    materialize.deliver(source, target)
    assert target.read_bytes() == BODY
    assert not (tmp_path / ".target.new").exists()


def test_sigterm_ends_it_at_once(origin: Origin, out: Path, tmp_path: Path) -> None:
    origin.holds = True
    arguments = ["--url", url(origin), "--cache", str(tmp_path / "c"), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "halimede.models", *arguments], cwd=ROOT)
    until = time.monotonic() + 30
    while not origin.asked and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(patience(30)) == 128 + signal.SIGTERM
    assert not out.exists()


def test_a_file_on_the_bus_is_that_of_the_nodes_cache_once_its_local_controller_has_fetched_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A pod is not on the bus."""
    out, cache = tmp_path / "downloads" / "candidate", tmp_path / "cache"
    arguments = ["--url", f"bus://gm/sha256/{DIGEST}", "--sha256", DIGEST, "--cache", str(cache), "--out", str(out)]
    assert main([*arguments, "--patience", "0"]) == TEMPORARY
    assert "the node's local controller has not fetched it" in capfd.readouterr().err
    (cache / "sha256").mkdir(parents=True, exist_ok=True)
    (cache / "sha256" / DIGEST).write_bytes(BODY)
    assert main(arguments) == 0
    assert out.read_bytes() == BODY
