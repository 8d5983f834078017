"""scripts/check_wheels.py finds a package that has no wheel for an architecture; pip resolves among local files."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts import check_wheels
from tests.dockerfile import images
from tests.unit.deploy.test_dockerfiles import required

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n"
X86, ARM = "cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_aarch64"
#: for a newer C library than the base image has
TOO_NEW = "cp311-cp311-manylinux_2_39_aarch64"


def wheel(folder: Path, name: str, tag: str) -> None:
    with ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as file:
        info = f"{name}-1.0.dist-info"
        file.writestr(f"{info}/METADATA", METADATA.format(name=name))
        file.writestr(f"{info}/WHEEL", WHEEL.format(tag=tag))
        file.writestr(f"{info}/RECORD", "")


def test_it_looks_at_all_that_images_install() -> None:
    extras = set().union(*(image.extras for image in images().values()))
    names = {line.partition(">")[0].partition("<")[0] for line in check_wheels.requirements()}
    assert names == required(extras)


@pytest.mark.slow
@pytest.mark.parametrize("tag", [None, TOO_NEW])
def test_a_package_without_a_wheel_for_arm_is_named(
    tag: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(check_wheels, "requirements", lambda: ["both", "one"])
    for name, built in (("both", X86), ("both", ARM), ("one", X86), ("one", tag)):
        if built:
            wheel(tmp_path, name, built)
    assert check_wheels.wheels("x86_64") == {"both": f"both-1.0-{X86}.whl", "one": f"one-1.0-{X86}.whl"}
    with pytest.raises(SystemExit, match=r"no wheels for aarch64:\n.*one"):
        check_wheels.wheels("aarch64")
    wheel(tmp_path, "one", ARM)
    assert check_wheels.wheels("aarch64")["one"] == f"one-1.0-{ARM}.whl"
