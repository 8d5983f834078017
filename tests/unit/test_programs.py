"""Programs of the command ``halimede``: each runs this installation's code, and names what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.programs import run_python, started
from tests.serving_world import adds
from tests.waiting import patience, wait_for

ROOT = Path(__file__).parents[2]
#: makes a module for ``halimede gm``
GM = "import sys; sys.modules['services.gm.main'] = made = type(sys)('made')\n"
#: a script for which these packages are not installed
NOT_INSTALLED = """
from importlib import metadata
version = metadata.version
def version_of(name):
    if name in {names}: raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = version_of
"""


def python(script: str, *words: str, folder: Path = ROOT, **told: str) -> subprocess.CompletedProcess[str]:
    """Run a script, then the command with these words."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **told}
    return run_python("-c", f"{script}\nfrom halimede.cli import main\nmain()", *words, cwd=folder, env=variables)


def not_installed(program: str, packages: str, extras: str) -> tuple[int, str]:
    """Return the exit code, and the one line, of a program without these packages."""
    return 2, f"halimede {program}: not installed: {packages}: pip install 'halimede[{extras}]'\n"


@pytest.mark.parametrize(
    ("words", "package", "extras"),
    [
        ("demo --help", "sklearn", "gm,lc,worker,cli,demo"),
        ("gm --help", "aiohttp", "gm"),
        ("lc --help", "filelock", "lc"),
        ("camera --help", "prometheus_client", "camera"),
        ("serve --help", "onnxruntime", "serve"),
        ("router --help", "aiohttp", "serve"),
        ("worker edge", "numpy", "worker"),  # of a role
    ],
)
def test_a_missing_package_is_one_line_with_the_extra_and_exit_code_2(words: str, package: str, extras: str) -> None:
    program, *options = words.split()
    done = python(f"import sys; sys.modules[{package!r}] = None", program, *options)
    assert (done.returncode, done.stderr) == not_installed(program, package, extras)


def test_a_package_of_another_extra_is_named_with_that_one_whenever_it_is_missed(tmp_path: Path) -> None:
    script = "import sys; sys.modules['usearch'] = sys.modules['usearch.index'] = None"
    told = {
        "NAMESPACE": "default", "SERVICE_NAME": "a", "WORKER_NAME": "a-w-n", "NODE_NAME": "n", "PART": "w",
        "APPLICATION": '{"name": "reid"}', "MODEL_URL": str(adds(tmp_path / "m.onnx", 1)),
        "MEMBERS": '["w"]', "CAMERAS": '["cam0"]', "JOINT": "members", "HALIMEDE_BROKER": "127.0.0.1:9",
    }  # fmt: skip
    done = python(script, "worker", "member", **told)
    assert (done.returncode, done.stderr) == not_installed("worker", "usearch", "worker,reid")


def test_a_package_that_a_task_of_a_group_misses_is_one_line(tmp_path: Path) -> None:
    script = (
        f"{GM}import asyncio\n"
        "async def work():\n"
        "    async with asyncio.TaskGroup() as group: group.create_task(late())\n"
        "async def late(): import obstore.nothing_of_that_name\n"
        "made.main = lambda words: asyncio.run(work())\n"
    )
    done = python(script, "gm")
    assert (done.returncode, done.stderr) == not_installed("gm", "obstore", "gm,s3")


def test_what_is_missing_of_our_own_packages_is_a_bug_that_shows_itself() -> None:
    done = python(f"{GM}def main(words): import halimede.nothing_of_that_name\nmade.main = main\n", "gm")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'halimede.nothing_of_that_name'" in done.stderr


def test_cameras_are_not_started_without_the_package_that_only_their_readers_need(tmp_path: Path) -> None:
    done = python(NOT_INSTALLED.format(names=["av"]), "camera", "--camera", f"door={tmp_path}")
    assert (done.returncode, done.stderr) == not_installed("camera", "av", "camera")


def test_a_system_does_not_start_without_the_packages_of_its_nodes(tmp_path: Path) -> None:
    done = python(NOT_INSTALLED.format(names=["onnxruntime", "numpy"]), "up", "--home", str(tmp_path / "home"))
    assert (done.returncode, done.stderr) == not_installed("up", "numpy, onnxruntime", "gm,lc,worker")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("program", ["gm", "worker", pytest.param("demo", marks=pytest.mark.slow)])
def test_a_foreign_package_of_the_same_name_is_never_run(tmp_path: Path, program: str) -> None:
    for name in ("services", "examples"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the foreign one was run')")
    told = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_python("-m", "halimede", program, "--help", cwd=tmp_path, env=told)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"halimede {program}" in done.stdout


def test_a_users_own_package_may_have_the_name_of_ours_in_a_worker(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").touch()
    (tmp_path / "services" / "mine.py").write_text("print('imported')")
    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "import halimede.worker\n"
        "def role():\n    import services.mine\n    sys.exit(7)\n"
        "halimede.worker.run_cloud = role\n"
    )
    done = python(script, "worker", "cloud", folder=tmp_path)
    assert (done.returncode, done.stdout) == (7, "imported\n"), done.stderr


def test_options_before_the_program_reach_it() -> None:
    done = python("", "--broker", "a:b:c", "gm")
    assert done.returncode == 2
    assert done.stderr.startswith("halimede gm: --broker: 'a:b:c' is not accepted")


def test_files_of_a_system_are_only_for_its_user(tmp_path: Path) -> None:
    done = python(f"{GM}import os; os.umask(0o022)\nmade.main = lambda words: print(oct(os.umask(0))) or 0\n", "gm")
    assert (done.returncode, done.stdout) == (0, "0o77\n"), done.stderr


def test_rest_alone_is_served_without_grpc(tmp_path: Path) -> None:
    model = adds(tmp_path / "m.onnx", 1)
    for package in ("grpc", "google"):
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('not installed', name={package!r})")
    told = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "HALIMEDE_LOG": "json"}
    words = ["-m", "halimede", "serve", str(model), "--http", "127.0.0.1:0"]
    refused = run_python(*words, "--grpc", "127.0.0.1:0", cwd=ROOT, env=told)
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("halimede serve: --grpc: '127.0.0.1:0' is not accepted: install it")
    assert "halimede[serve,grpc]" in last
    with started(sys.executable, *words, log=tmp_path / "log", cwd=ROOT, env=told) as process:
        wait_for(lambda: '"serving"' in (tmp_path / "log").read_text() or process.poll() is not None, 30)
        assert process.poll() is None, (tmp_path / "log").read_text()
        lines = map(json.loads, (tmp_path / "log").read_text().splitlines())
        (address,) = [line["http"] for line in lines if line.get("event") == "serving"]
        with urllib.request.urlopen(f"{address}/v2", timeout=patience(10)) as answer:
            assert answer.status == 200
