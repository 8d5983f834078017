"""A power cut: what was never brought to disk is gone. What was acknowledged before it is there afterwards.

For files the disk is modelled: it holds what ``os.fsync`` was called for, content and names apart. What SQLite brings
to disk at a commit depends on a setting: by its documentation FULL survives a power cut, so that is asserted.
https://www.sqlite.org/pragma.html#pragma_synchronous
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import pytest

from halimede.api import parse
from halimede.models import Cache, fetch
from halimede.names import Key
from services.gm.cluster.local import LocalCluster
from services.gm.cluster.sqlite_file import Database
from services.lc.store import NodeResource, NodeStore, ResourceVersion
from tests.integration.gm_world import model

KEY = Key("models", "default", "small")
SYNCHRONOUS = {"OFF": 0, "NORMAL": 1, "FULL": 2, "EXTRA": 3}
CONTENT = os.urandom(300_000)


class Disk:
    """What is on disk of some files: their content and the names in their folders, since the last fsync of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd: int) -> None:
        self._real(fd)
        found = os.stat(fd)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = {entry.name: entry.stat().st_ino for entry in os.scandir(fd)}
        else:
            self._contents[found.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def after_power_cut(self, folder: Path) -> dict[str, bytes]:
        """The files of a folder as the next boot finds them; one whose content was not brought to disk is empty."""
        names = self._names.get(folder.stat().st_ino, {})
        return {name: self._contents.get(inode, b"") for name, inode in names.items()}


@pytest.mark.parametrize("digest", [hashlib.sha256(CONTENT).hexdigest(), ""], ids=["by digest", "by address"])
async def test_fault_30_a_prepared_model_is_on_disk_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    disk = Disk(monkeypatch)
    (tmp_path / "origin.onnx").write_bytes(CONTENT)
    fetched = await fetch(str(tmp_path / "origin.onnx"), digest, Cache(tmp_path / "cache"))
    assert disk.after_power_cut(fetched.path.parent)[fetched.path.name] == CONTENT


async def test_fault_30_an_edit_that_gm_acknowledged_waited_for_the_disk(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "store.db") as cluster:
        statements: list[str] = []
        cluster._database.connection.set_trace_callback(statements.append)
        uid = (await cluster.apply(parse(model("small")))).stored.uid
        await cluster.apply(parse(model("small", labels=["a"])))
        await cluster.mark_drained("edge0", drained=True)
        await cluster.delete(KEY)
        await cluster.finalize(KEY, uid)
        await cluster.bury("another", 1)
        cluster._database.raise_epoch(cluster.epoch + 1)
    settings = [found[1] for each in statements if (found := re.fullmatch(r"PRAGMA synchronous = (\w+)", each))]
    commits = statements.count("COMMIT")
    assert commits == len(settings) == 7
    assert all(SYNCHRONOUS[setting] >= SYNCHRONOUS["FULL"] for setting in settings)
    assert [statements.index("BEGIN IMMEDIATE"), statements[0]] == [1, "PRAGMA synchronous = FULL"]


def test_fault_30_gms_epoch_is_on_disk_before_nodes_follow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the lock file as well: a store that is lost is followed by one with a higher epoch."""
    disk_of: dict[str, int] = {}
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        disk_of[path.name] = int(path.read_text().split()[0])

    monkeypatch.setattr(os, "fsync", fsync)
    with Database(tmp_path / "store.db") as database:
        assert disk_of == {"store.db.lock": database.epoch}


def test_fault_30_what_a_node_was_sent_waited_for_the_disk(tmp_path: Path) -> None:
    with NodeStore(tmp_path / "store.db") as store:

        def setting() -> int:
            return int(store._db.execute("PRAGMA synchronous").fetchone()[0])

        statements: list[str] = []
        store._db.set_trace_callback(statements.append)
        for change in (
            lambda: store.put(NodeResource(KEY, "u1", 1, {"kind": "Model"})),
            lambda: store.put_tombstone(ResourceVersion("u0", 1), KEY),
            lambda: store.drop(KEY),
            lambda: store.record_gm_epoch(7),
            store.check,
            lambda: store.put(NodeResource(KEY, "u2", 1, {"kind": "Model"})),
        ):
            change()
            assert setting() >= SYNCHRONOUS["FULL"]
            assert not store._db.in_transaction
        assert statements.count("COMMIT") >= 5
