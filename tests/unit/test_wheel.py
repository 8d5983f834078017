"""The wheel has the whole system, and only halimede at its top; who builds it twice gets the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.dockerfile import stages
from tests.programs import run_python
from tests.wheels import build, build_wheel

ROOT = Path(__file__).parents[2]
#: what the Dockerfile copies into the stage that builds it
COPIED = [
    "pyproject.toml", "README.md", "LICENSE", "NOTICE", "halimede", "services", "examples/__init__.py",
    "examples/demo_command.py", "examples/digits",
]  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copied(folder: Path) -> Path:
    """Copy what an image is built from, with other times, modes and leftovers than here."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, copy_function=shutil.copyfile)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    for path in folder.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    models = folder / "examples" / "digits" / "models"
    models.mkdir(exist_ok=True)
    (models / "mine.onnx").write_bytes(b"trained on this machine")
    return folder


def test_the_top_of_the_wheel_is_halimede_alone_and_every_module_is_in_it(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"halimede", "halimede-0.1.0.dist-info"}
    for package in ("halimede", "services", "examples/digits"):
        folder = "" if package == "halimede" else "halimede/_bundle/"
        modules = {f"{folder}{path.relative_to(ROOT)}" for path in (ROOT / package).rglob("*.py")}
        assert modules <= set(names)
    pages = "halimede/_bundle/services/gm/dashboard/static/index.html"
    assert {"halimede/py.typed", pages, "halimede/_bundle/examples/digits/2-service.yaml"} <= set(names)
    left_out = re.compile(r"Dockerfile|__pycache__|/models/\w+\.onnx|/pictures/|tests/")
    assert not [name for name in names if left_out.search(name)]


def test_the_wheel_is_the_same_bytes_from_a_checkout_and_from_what_images_copy(wheel: Path, tmp_path: Path) -> None:
    assert digest(build_wheel(copied(tmp_path / "copy"), tmp_path)) == digest(wheel)


def test_every_image_has_the_wheel_of_these_files() -> None:
    copies = [line for word, line in stages()["wheel"].own if word == "COPY"]
    assert [source for line in copies for source in line.split()[:-1]] == COPIED
    kept = (ROOT / ".dockerignore").read_text()
    assert all(f"!{name}\n" in kept for name in COPIED)


@pytest.mark.slow
def test_the_source_archive_is_the_same_twice_and_the_wheel_can_be_built_from_it(wheel: Path, tmp_path: Path) -> None:
    first, second = build("sdist", ROOT, tmp_path), build("sdist", ROOT, tmp_path)
    assert digest(first) == digest(second)
    shutil.unpack_archive(first, tmp_path / "unpacked")
    assert digest(build_wheel(tmp_path / "unpacked" / "halimede-0.1.0", tmp_path)) == digest(wheel)


def test_the_wheel_needs_no_compiler_and_rest_alone_needs_no_grpc(wheel: Path) -> None:
    assert wheel.name == "halimede-0.1.0-py3-none-any.whl"
    metadata = Parser().parsestr(ZipFile(wheel).read("halimede-0.1.0.dist-info/METADATA").decode())
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"all", "gm", "lc", "worker", "camera", "serve", "grpc", "cli"} <= extras
    required = metadata.get_all("Requires-Dist", [])
    assert "grpcio; extra == 'grpc'" in required
    assert "grpcio; extra == 'serve'" not in required
    everything = {line.partition(";")[0] for line in required if re.search("extra == '(?!dev|tensorflow)", line)}
    every = {line.partition(";")[0] for line in required if line.endswith("extra == 'all'")}
    assert everything - {line for line in everything if "halimede[" in line} <= every | {
        line.partition(";")[0] for line in required if not line.endswith(("'all'", "'dev'"))
    }


def test_python_3_10_is_refused_by_pip(wheel: Path, tmp_path: Path) -> None:
    arguments = ["-m", "pip", "download", "--no-index", "--no-deps", "--only-binary", ":all:", "--dest", str(tmp_path)]
    for version, code in (("3.10", 1), ("3.11", 0)):
        done = run_python(*arguments, "--python-version", version, wheel)
        assert done.returncode == code, done.stderr
        assert ("requires a different Python: 3.10.0 not in '>=3.11'" in done.stderr) == (version == "3.10")
