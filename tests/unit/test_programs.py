"""Programs of the command ``halimede``: each runs this installation's code, and names what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.serving_world import adds
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
#: a package of each program, and the extra that has it
NEEDED = {
    "demo": ("sklearn", "halimede[gm,lc,worker,cli,demo]"),
    "gm": ("aiohttp", "halimede[gm]"),
    "lc": ("filelock", "halimede[lc]"),
    "camera": ("prometheus_client", "halimede[camera]"),
    "serve": ("onnxruntime", "halimede[serve]"),
    "router": ("aiohttp", "halimede[serve]"),
}


def python(script: str, *words: str, folder: Path = ROOT, **told: str) -> subprocess.CompletedProcess[str]:
    """Run a script, then the command with these words."""
    command = [sys.executable, "-c", f"{script}\nfrom halimede.cli import main\nmain()", *words]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **told}
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=patience(60), check=False
    )


@pytest.mark.parametrize("program", NEEDED)
def test_a_missing_package_is_one_line_with_the_extra_and_exit_code_2(program: str) -> None:
    package, extra = NEEDED[program]
    done = python(f"import sys; sys.modules[{package!r}] = None", program, "--help")
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"halimede {program}: not installed: {package}: pip install '{extra}'\n"


def test_a_package_that_a_role_needs_is_named_too() -> None:
    done = python("import sys; sys.modules['onnxruntime'] = sys.modules['numpy'] = None", "worker", "edge")
    assert done.returncode == 2, done.stderr
    assert done.stderr == "halimede worker: not installed: numpy: pip install 'halimede[worker]'\n"


def test_a_package_of_another_extra_is_named_with_that_one_whenever_it_is_missed(tmp_path: Path) -> None:
    script = "import sys; sys.modules['usearch'] = sys.modules['usearch.index'] = None"
    told = {
        "NAMESPACE": "default", "SERVICE_NAME": "a", "WORKER_NAME": "a-w-n", "NODE_NAME": "n", "PART": "w",
        "APPLICATION": '{"name": "reid"}', "MODEL_URL": str(adds(tmp_path / "m.onnx", 1)),
        "MEMBERS": '["w"]', "CAMERAS": '["cam0"]', "JOINT": "members", "HALIMEDE_BROKER": "127.0.0.1:9",
    }  # fmt: skip
    done = python(script, "worker", "member", **told)
    assert done.returncode == 2, done.stderr
    assert done.stderr == "halimede worker: not installed: usearch: pip install 'halimede[worker,reid]'\n"


def test_a_package_that_a_task_of_a_group_misses_is_one_line(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; sys.modules['services.gm.main'] = made = type(sys)('made')\n"
        "async def work():\n"
        "    async with asyncio.TaskGroup() as group: group.create_task(late())\n"
        "async def late(): import obstore.nothing_of_that_name\n"
        "made.main = lambda words: asyncio.run(work())\n"
    )
    done = python(script, "gm")
    assert (done.returncode, done.stderr) == (2, "halimede gm: not installed: obstore: pip install 'halimede[gm,s3]'\n")


def test_what_is_missing_of_our_own_packages_is_a_bug_that_shows_itself() -> None:
    script = "import sys; sys.modules['services.gm.main'] = made = type(sys)('made')\n"
    script += "def main(words): import halimede.nothing_of_that_name\nmade.main = main\n"
    done = python(script, "gm")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'halimede.nothing_of_that_name'" in done.stderr


def test_cameras_are_not_started_without_the_package_that_only_their_readers_need(tmp_path: Path) -> None:
    script = (
        "from importlib import metadata\nversion = metadata.version\n"
        "def gone(name):\n"
        "    if name == 'av': raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = gone\n"
    )
    done = python(script, "camera", "--camera", f"door={tmp_path}")
    assert (done.returncode, done.stderr) == (2, "halimede camera: not installed: av: pip install 'halimede[camera]'\n")


def test_a_system_does_not_start_without_the_packages_of_its_nodes(tmp_path: Path) -> None:
    script = (
        "from importlib import metadata\nversion = metadata.version\n"
        "def gone(name):\n"
        "    if name in ('onnxruntime', 'numpy'): raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = gone\n"
    )
    done = python(script, "up", "--home", str(tmp_path / "home"))
    expected = "halimede up: not installed: numpy, onnxruntime: pip install 'halimede[gm,lc,worker]'\n"
    assert (done.returncode, done.stderr) == (2, expected)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("program", ["gm", "worker", pytest.param("demo", marks=pytest.mark.slow)])
def test_a_foreign_package_of_the_same_name_is_never_run(tmp_path: Path, program: str) -> None:
    for name in ("services", "examples"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the foreign one was run')")
    command = [sys.executable, "-m", "halimede", program, "--help"]
    told = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        command, cwd=tmp_path, env=told, capture_output=True, text=True, timeout=patience(60), check=False
    )
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
    script = "import os, sys; os.umask(0o022); sys.modules['services.gm.main'] = made = type(sys)('made')\n"
    script += "made.main = lambda words: print(oct(os.umask(0))) or 0\n"
    done = python(script, "gm")
    assert (done.returncode, done.stdout) == (0, "0o77\n"), done.stderr


def test_rest_alone_is_served_without_grpc(tmp_path: Path) -> None:
    model = adds(tmp_path / "m.onnx", 1)
    for package in ("grpc", "google"):
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('not installed', name={package!r})")
    told = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "HALIMEDE_LOG": "json"}
    command = [sys.executable, "-m", "halimede", "serve", str(model), "--http", "127.0.0.1:0"]
    refused = subprocess.run(
        [*command, "--grpc", "127.0.0.1:0"],
        cwd=ROOT,
        env=told,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("halimede serve: --grpc: '127.0.0.1:0' is not accepted: install it")
    assert "halimede[serve,grpc]" in last
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=told, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while '"serving"' not in (tmp_path / "log").read_text():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.05)
        lines = map(json.loads, (tmp_path / "log").read_text().splitlines())
        (address,) = [line["http"] for line in lines if line.get("event") == "serving"]
        with urllib.request.urlopen(f"{address}/v2", timeout=10) as answer:
            assert answer.status == 200
    finally:
        process.kill()
        process.wait()
