"""What workers leave on the node goes with their service, and not before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.names import Key
from services.lc.paths import NodePaths, Worker
from services.lc.worker_files import put_aside, remove
from tests.integration.lc_world import EDGE, HELMET, SMALL, World, model, service, world
from tests.simulated import eventually, simulated


def leave(folders: NodePaths, worker: Worker = EDGE) -> Path:
    folder = folders.worker(worker)
    (folder / "own" / "files").mkdir(parents=True)
    for name in ("worker.log", "worker.log.1", "ledger", "own/files/one"):
        (folder / name).write_text("x")
    return folder


@simulated
async def test_the_folders_of_a_forgotten_service_are_removed_and_no_others(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        folders = node.config.folders
        gone, stays = leave(folders), leave(folders, Worker("default", "other-edge-edge0"))
        await node.gm.delete(SMALL, "uid-small")
        await node.gm.forgotten(SMALL)
        assert gone.exists()
        await node.gm.delete(HELMET, "u1")
        await node.gm.forgotten(HELMET)
        await eventually(lambda: not gone.exists())
        await eventually(lambda: not list(folders.removed.iterdir()), 20)
        assert (stays / "ledger").exists()


@simulated
async def test_a_worker_keeps_its_folder_until_it_is_gone(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        folder = leave(node.config.folders)
        node.launcher.of(EDGE).stubborn = True
        await node.gm.delete(HELMET, "u1")
        await asyncio.sleep(5)
        assert (folder / "ledger").exists()
        await node.gm.forgotten(HELMET)
        await eventually(lambda: not folder.exists())


@simulated
async def test_a_service_that_comes_back_before_its_farewell_keeps_its_workers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, inserted=True) as node:
        folder = leave(node.config.folders)
        clear, asked = node.bus.clear, asyncio.Event()

        async def late(address: object, **options: float) -> None:
            asked.set()
            await asyncio.sleep(3)
            await clear(address, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(node.bus, "clear", late)
        await node.gm.delete(HELMET, "u1")
        await asked.wait()
        await node.gm.insert(model(), service(uid="u2"))
        await asyncio.sleep(10)
        assert (folder / "ledger").exists()
        assert node.launcher.of(EDGE).record.uid == "u2"


@simulated
async def test_what_a_killed_controller_put_aside_is_removed_by_the_next(tmp_path: Path) -> None:
    node = World(tmp_path)
    leave(node.config.folders)
    put_aside(node.config.folders, HELMET)
    (node.config.folders.removed / "link").symlink_to(tmp_path)
    async with node.gm.running(), node.lc():
        await eventually(lambda: not list(node.config.folders.removed.iterdir()), 20)
    assert node.config.folders.root.exists()


def test_names_that_never_had_a_folder_and_folders_that_cannot_be_moved_do_no_harm(tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    put_aside(folders, Key(HELMET.plural, "default", "h" * 250))
    remove(folders)
    folder = leave(folders)
    folders.removed.write_text("a file where a folder should be")
    put_aside(folders, HELMET)
    remove(folders)
    assert folder.exists()


def test_both_roles_are_removed_with_their_empty_namespace(tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    for role in ("edge", "cloud"):
        leave(folders, Worker("default", f"helmet-{role}-edge0"))
    put_aside(folders, HELMET)
    remove(folders)
    assert not folders.worker(EDGE).parent.exists()
    assert not list(folders.removed.iterdir())


@pytest.mark.parametrize(
    ("plural", "roles"), [("jointinferenceservices", {"edge", "cloud"}), ("inferencemodels", {"serve"})]
)
def test_a_service_and_a_served_model_of_one_name_have_folders_of_their_own(
    plural: str, roles: set[str], tmp_path: Path
) -> None:
    folders = NodePaths(tmp_path, "edge0")
    left = {role: leave(folders, Worker("default", f"face-{role}-edge0")) for role in ("edge", "cloud", "serve")}
    put_aside(folders, Key(plural, "default", "face"))
    assert {role for role, folder in left.items() if not folder.exists()} == roles
