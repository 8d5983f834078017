"""What workers leave on the node goes with their service, and not before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.names import Key
from services.lc.paths import NodePaths, Worker
from services.lc.worker_files import move_worker_folders, remove_moved_folders
from tests.integration.lc_world import EDGE, HELMET, SMALL, World, model, service
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


def leave(folders: NodePaths, worker: Worker = EDGE) -> Path:
    folder = folders.worker(worker)
    (folder / "own" / "files").mkdir(parents=True)
    for name in ("worker.log", "worker.log.1", "ledger", "own/files/one"):
        (folder / name).write_text("x")
    return folder


async def test_the_folders_of_a_forgotten_service_are_removed_and_no_others(working_node: World) -> None:
    folders = working_node.config.folders
    gone, stays = leave(folders), leave(folders, Worker("default", "other-edge-edge0"))
    await working_node.loses(SMALL, "uid-small")
    assert gone.exists()
    await working_node.loses()
    await eventually(lambda: not gone.exists())
    await eventually(lambda: not list(folders.removed.iterdir()), 20)
    assert (stays / "ledger").exists()


async def test_a_worker_keeps_its_folder_until_it_is_gone(working_node: World) -> None:
    folder = leave(working_node.config.folders)
    working_node.launcher.of(EDGE).stubborn = True
    await working_node.gm.delete(HELMET, "u1")
    await asyncio.sleep(5)
    assert (folder / "ledger").exists()
    await working_node.gm.forgotten(HELMET)
    await eventually(lambda: not folder.exists())


async def test_a_service_that_comes_back_before_its_farewell_keeps_its_workers_folder(
    working_node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = leave(working_node.config.folders)
    clear, asked = working_node.bus.clear, asyncio.Event()

    async def late(address: object, **options: float) -> None:
        asked.set()
        await asyncio.sleep(3)
        await clear(address, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(working_node.bus, "clear", late)
    await working_node.gm.delete(HELMET, "u1")
    await asked.wait()
    await working_node.gm.insert(model(), service(uid="u2"))
    await asyncio.sleep(10)
    assert (folder / "ledger").exists()
    assert working_node.launcher.of(EDGE).record.uid == "u2"


async def test_what_a_killed_controller_put_aside_is_removed_by_the_next(tmp_path: Path) -> None:
    node = World(tmp_path)
    leave(node.config.folders)
    move_worker_folders(node.config.folders, HELMET)
    (node.config.folders.removed / "link").symlink_to(tmp_path)
    async with node.gm.running(), node.lc():
        await eventually(lambda: not list(node.config.folders.removed.iterdir()), 20)
    assert node.config.folders.root.exists()


def test_names_that_never_had_a_folder_and_folders_that_cannot_be_moved_do_no_harm(tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    move_worker_folders(folders, Key(HELMET.plural, "default", "h" * 250))
    remove_moved_folders(folders)
    folder = leave(folders)
    folders.removed.write_text("a file where a folder should be")
    move_worker_folders(folders, HELMET)
    remove_moved_folders(folders)
    assert folder.exists()


@pytest.mark.parametrize(
    ("plural", "name", "own", "foreign"),
    [
        ("jointinferenceservices", "helmet", "helmet-edge-edge0 helmet-cloud-edge0", ""),
        ("jointinferenceservices", "face", "face-edge-edge0 face-cloud-edge0", "face-serve-edge0"),
        ("inferencemodels", "face", "face-serve-edge0", "face-edge-edge0 face-cloud-edge0"),
        (
            "multiedgeinferenceservices", "lobby", "lobby.door.edge0 lobby.joint.edge0",
            "lobby-edge-edge0 lobby.a.b.edge0 lobby2.door.edge0",
        ),
        (
            "jointinferenceservices", "site", "site-edge-edge0 site.gate-tier-edge0",
            "site.gate.edge0 site.gate-tier-edge1 other.gate-tier-edge0",
        ),
    ],
    ids=["the last service", "a service", "a served model of its name", "a multi-edge service", "a service with tiers"],
)  # fmt: skip
def test_the_folders_of_its_own_workers_go_with(plural: str, name: str, own: str, foreign: str, tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    for worker in f"{own} {foreign}".split():
        leave(folders, Worker("default", worker))
    move_worker_folders(folders, Key(plural, "default", name))
    remove_moved_folders(folders)
    namespace = folders.worker(EDGE).parent
    assert {path.name for path in namespace.glob("*")} == set(foreign.split())
    assert (namespace.exists(), list(folders.removed.iterdir())) == (bool(foreign), [])
