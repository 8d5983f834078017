"""A copy of a Model on the node is shortened or overwritten after it was verified: no worker starts with it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from halimede.api.model_formats import ONNX
from halimede.messages import ModelFacts
from halimede.models import Cache, fetch
from halimede.models.archive import model_file, unpack
from halimede.models.origin_watch import FILE_PERIOD_S
from services.lc.models.preparer import InstalledModel
from services.lc.planning.resource_state import RequiredFile
from services.lc.supervisor.process import Process, Start
from tests.integration.lc_world import EDGE, HELMET, SMALL, FakeLauncher, World, model, service
from tests.simulated import eventually
from tests.unit.models.archives import FILES, tar

pytestmark = pytest.mark.simulated

CONTENT = FILES["model.onnx"]


def shorten(path: Path) -> None:
    """Shorten a file, as a power cut or a full disk does."""
    path.chmod(0o600)
    path.write_bytes(CONTENT[: len(CONTENT) // 2])


def overwrite(path: Path) -> None:
    """Write other content of the same size."""
    path.chmod(0o600)
    path.write_bytes(b"x" * len(CONTENT))


class ReadingLauncher(FakeLauncher):
    """Notes the content of the model with which each process starts."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[bytes] = []

    def start(self, start: Start) -> Process:
        assert start.model
        self.contents.append(start.model.read_bytes())
        return super().start(start)


async def bring(want: RequiredFile, cache: Cache, progress: Any) -> InstalledModel:
    """Bring a model as LC does, without the trial, which a simulation has no time for."""
    fetched = await fetch(want.url, want.sha256, cache, progress)
    path = model_file(await unpack(cache, fetched), ONNX)
    return InstalledModel(path, ModelFacts(digest=fetched.digest, size=fetched.size), fresh=fetched.fresh)


class Node(World):
    """A node that reads models as it starts workers with them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bring = bring
        self.launcher: ReadingLauncher = ReadingLauncher()


@asynccontextmanager
async def node_with(folder: Path, origin: bytes, *, has_digest: bool) -> AsyncIterator[Node]:
    """A node with a service, whose edge worker runs with a Model of a file on it."""
    file, node = folder / "small.onnx", Node(folder)
    file.write_bytes(origin)
    body = model(url=file.as_uri(), sha256=hashlib.sha256(origin).hexdigest() if has_digest else "")
    async with node.gm.running(), node.lc():
        await node.gm.insert(body, service())
        await eventually(lambda: node.launcher.alive)
        yield node


def copy_of(node: World) -> Path:
    """Return the file with which the worker was started."""
    start = node.launcher.started[0].start
    assert start
    assert start.model
    return start.model


@pytest.mark.parametrize("damage", [shorten, overwrite])
@pytest.mark.parametrize("has_digest", [True, False], ids=["with sha256", "without"])
@pytest.mark.parametrize("origin", [CONTENT, tar(FILES)], ids=["a file", "an archive"])
async def test_fault_39_no_worker_starts_with_a_damaged_copy(
    tmp_path: Path, damage: Callable[[Path], None], has_digest: bool, origin: bytes
) -> None:
    async with node_with(tmp_path, origin, has_digest=has_digest) as node:
        damage(copy_of(node))
        node.launcher.of(EDGE).end(-9)
        status = await node.gm.reaches(SMALL, "Pending", "ModelMissing")
        assert status.message == f"{copy_of(node)} was changed: LC downloads it again"
        await node.gm.reaches(SMALL, "Ready", "")
        await eventually(lambda: node.launcher.alive, 60)
        assert node.launcher.contents == [CONTENT, CONTENT]


@pytest.mark.parametrize("damage", [shorten, overwrite, Path.unlink])
@pytest.mark.parametrize("has_digest", [True, False], ids=["with sha256", "without"])
async def test_fault_39_a_damaged_copy_is_noticed_while_its_worker_runs(
    tmp_path: Path, damage: Callable[[Path], None], has_digest: bool
) -> None:
    async with node_with(tmp_path, CONTENT, has_digest=has_digest) as node:
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")
        (process,), copy = node.launcher.alive, copy_of(node)
        damage(copy)
        await eventually(lambda: copy.exists() and copy.read_bytes() == CONTENT, 2 * FILE_PERIOD_S)
        await node.gm.reaches(SMALL, "Ready", "")
        reports = [status for _, key, status in node.gm.history if key == SMALL and status]
        assert any(report.reason == "ModelMissing" for report in reports)
        assert node.launcher.alive == [process], "it has the model in its memory"
        assert node.gm.statuses[HELMET].phase == "Running"


async def test_fault_39_a_damaged_copy_whose_origin_is_gone_is_not_used(tmp_path: Path) -> None:
    async with node_with(tmp_path, CONTENT, has_digest=True) as node:
        (tmp_path / "small.onnx").rename(tmp_path / "elsewhere.onnx")
        overwrite(copy_of(node))
        status = await node.gm.reaches(SMALL, "Failed", "NotFound")
        assert "does not exist" in status.message
        assert len(node.launcher.alive) == 1
        node.launcher.of(EDGE).end(-9)
        await eventually(lambda: node.gm.statuses[HELMET].phase == "Failed", 60)
        assert not node.launcher.alive
        (tmp_path / "elsewhere.onnx").rename(tmp_path / "small.onnx")
        await eventually(lambda: node.launcher.alive, 120)
        assert node.launcher.contents == [CONTENT, CONTENT]
