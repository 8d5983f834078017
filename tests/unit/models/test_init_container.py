"""``python -m halimede.models``: what init containers run."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from halimede.models import materialize
from halimede.models.__main__ import MISTAKE, OWN_CACHE_NAME, TEMPORARY_FAILURE, main
from tests.origins import Handler, Origin
from tests.programs import run_python
from tests.unit.models.archives import FILES, tar
from tests.waiting import patience, wait_for

BODY = os.urandom(300_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
ROOT = Path(__file__).parents[3]


PATH = "/small.onnx?token=hunter3"


def fail_first(origin: Origin, times: int) -> None:
    def answer(handler: Handler) -> bool:
        if len(origin.asked) > times:
            return False
        handler.head(503, {"Content-Length": "0"})
        return True

    origin.answers[PATH] = answer


def url(origin: Origin) -> str:
    return f"http://user:hunter2@127.0.0.1:{origin.port}{PATH}"


def arguments(url: str | Path, cache: Path, out: Path, *more: str) -> list[str]:
    return ["--url", str(url), "--cache", str(cache), "--out", str(out), *more]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "models.example" / "small.onnx"


@pytest.fixture
def ending(tmp_path: Path) -> Path:
    """The file whose text Kubernetes shows of a container that has ended."""
    path = tmp_path / "termination-log"
    path.touch()
    return path


def written(path: Path) -> Path:
    path.write_bytes(BODY)
    return path


def modes(path: Path) -> tuple[int, int]:
    return path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777


def test_a_model_comes_through_the_cache_to_its_place(origin: Origin, out: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old = os.umask(0o077)
    try:
        for _ in range(2):  # over what is there already, as after a reboot
            assert main(arguments(url(origin), cache, out, "--sha256", DIGEST)) == 0
    finally:
        os.umask(old)
    assert len(origin.asked) == 1
    cached = cache / "sha256" / DIGEST
    assert out.read_bytes() == cached.read_bytes() == BODY
    assert modes(out) == (0o444, 0o755)
    assert modes(cached) == (0o400, 0o700)
    assert out.stat().st_ino != cached.stat().st_ino  # who may write to one cannot change the other
    assert sorted(path.name for path in out.parent.iterdir()) == ["small.onnx"]


def test_a_cache_that_cannot_be_written_is_done_without(
    origin: Origin, out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("not a folder")  # root may write to any folder
    assert main(arguments(url(origin), tmp_path / "cache", out, "--sha256", DIGEST)) == 0
    assert out.read_bytes() == BODY
    assert not (out.parent / OWN_CACHE_NAME).exists()
    assert capfd.readouterr().err.count("without the node's cache") == 1


def readable(path: Path, uid: int) -> bool:
    code = f"import os, pathlib; os.setgid({uid}); os.setuid({uid}); pathlib.Path({str(path)!r}).read_bytes()"
    return run_python("-c", code).returncode == 0


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
        run_python("-m", "halimede.models", *arguments(url(origin), cache, out), cwd=ROOT, check=True)
        assert modes(out) == (0o444, 0o755)
        assert modes(out.parent) == (0o755, 0o755)
        assert [path.name for path in out.parent.iterdir()] == ["small.onnx"]
        if os.geteuid() == 0:
            assert readable(out, 65534)
            assert not any(readable(path, 65534) for path in cache.rglob("sha256/*"))


def test_temporary_failures_are_tried_again(origin: Origin, out: Path, tmp_path: Path) -> None:
    fail_first(origin, 2)
    assert main(arguments(url(origin), tmp_path / "c", out)) == 0
    assert len(origin.asked) == 3


def test_patience_ends(
    origin: Origin, out: Path, ending: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fail_first(origin, 100)
    assert main(arguments(url(origin), tmp_path / "c", out, "--patience", "5"), ending) == TEMPORARY_FAILURE
    assert 1 < len(origin.asked) < 8
    assert "HTTPStatus" in ending.read_text()
    assert "503" in ending.read_text()
    assert "hunter" not in capfd.readouterr().err + ending.read_text()
    assert not out.exists()


def test_a_mistake_is_not_tried_again(origin: Origin, out: Path, ending: Path, tmp_path: Path) -> None:
    ending.write_text("a longer text of an earlier container " * 100)
    assert main(arguments(url(origin), tmp_path / "c", out, "--sha256", "0" * 64), ending) == MISTAKE
    assert len(origin.asked) == 1
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
    model = written(tmp_path / "a model.onnx")
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
        assert main(arguments(archive, tmp_path / "c", out, "--unpack")) == 0
        found = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
        assert {name: path.read_bytes() for name, path in found.items()} == FILES
        assert {modes(path) for path in found.values()} == {(0o444, 0o755)}
        assert [path.name for path in out.parent.iterdir()] == [out.name]
    single = out.with_name("single.onnx")
    assert main(arguments(written(tmp_path / "model.onnx"), tmp_path / "c", single, "--unpack")) == 0
    assert single.read_bytes() == BODY


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, ending: Path) -> None:
    model = written(tmp_path / "model.onnx")
    (tmp_path / "file").touch()
    command = arguments(model, tmp_path / "c", tmp_path / "file" / "x", "--patience", "0")
    assert main(command, ending) == TEMPORARY_FAILURE
    assert "NotWritable" in ending.read_text()


def test_what_a_killed_one_left_is_written_over(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / ".target.new").write_bytes(b"half")
    materialize.install_file(written(tmp_path / "source"), target)
    assert target.read_bytes() == BODY
    assert not (tmp_path / ".target.new").exists()


def test_sigterm_ends_it_at_once(origin: Origin, out: Path, tmp_path: Path) -> None:
    origin.before = lambda _: time.sleep(60)
    command = arguments(url(origin), tmp_path / "c", out)
    process = subprocess.Popen([sys.executable, "-m", "halimede.models", *command], cwd=ROOT)
    wait_for(lambda: origin.asked, 30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(patience(30)) == 128 + signal.SIGTERM
    assert not out.exists()


def test_a_file_on_the_bus_is_that_of_the_nodes_cache_once_its_local_controller_has_fetched_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A pod is not on the bus."""
    out, cache = tmp_path / "downloads" / "candidate", tmp_path / "cache"
    command = arguments(f"bus://gm/sha256/{DIGEST}", cache, out, "--sha256", DIGEST)
    assert main([*command, "--patience", "0"]) == TEMPORARY_FAILURE
    assert "the node's local controller has not fetched it" in capfd.readouterr().err
    (cache / "sha256").mkdir(parents=True, exist_ok=True)
    written(cache / "sha256" / DIGEST)
    assert main(command) == 0
    assert out.read_bytes() == BODY
