"""An edge node installs what its LC needs and nothing heavier."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.test_images import Image, image_of, starts
from tests.programs import run_program
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HEAVY = ("numpy", "onnxruntime", "PIL", "kubernetes", "typer", "sklearn")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the LC's image: a virtual environment with what an LC needs from this checkout, and no more."""
    return image_of("lc", tmp_path_factory.mktemp("lc"), pip=True)


def test_the_image_of_an_lc_starts(image: Image) -> None:
    starts(image)


def test_an_lc_environment_holds_no_heavy_package(image: Image) -> None:
    code = f"import importlib.util as u; print([m for m in {HEAVY!r} if u.find_spec(m)])"
    assert image.python("-c", code).stdout == "[]\n"


def test_the_command_says_what_to_install_when_its_extra_is_missing(image: Image) -> None:
    ended = run_program(image.venv / "bin" / "halimede", "version")
    assert ended.returncode != 0
    assert "halimede[cli]" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_the_lc_starts_with_only_its_own_extra_and_no_broker(image: Image, tmp_path: Path) -> None:
    command = ["-m", "halimede", "lc", "--node", "edge0", "--home", str(tmp_path), "--broker", "127.0.0.1:9"]
    environment = {"PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        image.venv / "bin" / "python", *command, env=environment, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
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
