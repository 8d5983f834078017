"""An edge node installs what its LC needs and nothing heavier."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_images import Image, image_of, starts
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HEAVY = ("numpy", "onnxruntime", "PIL", "kubernetes", "typer", "sklearn")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the LC's image: a virtual environment with what an LC needs from this checkout, and no more."""
    return image_of("lc", tmp_path_factory.mktemp("lc"), pip=True)


@pytest.fixture
def lc_only(image: Image) -> Path:
    """Return its Python."""
    return image.venv / "bin" / "python"


def test_the_image_of_an_lc_starts(image: Image) -> None:
    starts(image)


def test_an_lc_environment_holds_no_heavy_package(lc_only: Path) -> None:
    code = f"import importlib.util as u; print([m for m in {HEAVY!r} if u.find_spec(m)])"
    found = subprocess.run([lc_only, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_command_says_what_to_install_when_its_extra_is_missing(lc_only: Path) -> None:
    found = subprocess.run([lc_only.parent / "halimede", "version"], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "halimede[cli]" in found.stderr
    assert "Traceback" not in found.stderr


async def test_the_lc_starts_with_only_its_own_extra_and_no_broker(lc_only: Path, tmp_path: Path) -> None:
    command = ["-m", "halimede", "lc", "--node", "edge0", "--home", str(tmp_path), "--broker", "127.0.0.1:9"]
    environment = {"PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        str(lc_only), *command, env=environment, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(patience(30)):
        while not (tmp_path / "nodes" / "edge0" / "store.db").exists():
            assert process.returncode is None, (await process.communicate())[1].decode()
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    assert process.returncode is None
    process.terminate()
    _, errors = await asyncio.wait_for(process.communicate(), patience(20))
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors
