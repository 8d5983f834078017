"""The Datasets of a node in simulated time: when they are counted, what is said of them, and who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halimede.datasets import Counted, count
from halimede.datasets.count_process import CountJob, Progress
from halimede.names import Key
from services.lc.dataset_counts import Datasets
from services.lc.planning.resource_state import RequiredFile
from tests.integration.lc_world import EDGE, HELMET, World, model, service
from tests.simulated import eventually, simulated

IMAGES = Key("datasets", "default", "images")


def want(path: Path | str, form: str = "txt", generation: int = 1) -> dict[Key, RequiredFile]:
    return {IMAGES: RequiredFile(IMAGES, "u", generation, str(path), format=form)}


class Watched:
    """Datasets with a counter that remembers how often it was asked."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        self.counts = 0
        self.changes: list[tuple[str, str, str]] = []
        self.datasets = Datasets(tasks, self._changed, folder, self._count)

    async def _count(self, job: CountJob, told: Callable[[Progress], None]) -> Counted:
        self.counts += 1
        told(Progress(done=50, total=100, samples=7))
        await asyncio.sleep(1)
        return count(job.path, job.format, job.ledger)

    def _changed(self, key: Key) -> None:
        known = self.datasets.preparations[key]
        self.changes.append((known.phase, known.reason, known.message))

    @property
    def last(self) -> tuple[str, str, str]:
        return self.changes[-1]


@simulated
async def test_a_dataset_is_counted_at_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("a\nb\n")
    async with asyncio.TaskGroup() as tasks:
        watched = Watched(tasks, tmp_path / "kept")
        watched.datasets.set_required(want(path))
        await asyncio.sleep(2)
        assert watched.changes == [
            ("Pending", "Counting", "counting: 50 %, 7 samples so far"),
            ("Ready", "", "2 samples"),
        ]
        await asyncio.sleep(3600)
        assert (watched.counts, len(watched.changes)) == (1, 2)
        with path.open("a") as file:
            file.write("c\n")
        await asyncio.sleep(62)
        assert watched.last == ("Ready", "", "3 samples")
        assert watched.changes[-2][0] == "Ready"  # what is known stays known meanwhile
        assert watched.datasets.facts[IMAGES].number_of_samples == 3
        watched.datasets.set_required(want(path, "csv", 2))  # an edit is no reason to wait
        await asyncio.sleep(2)
        assert watched.last == ("Ready", "", "2 samples")
        watched.datasets.set_required({})
        assert not watched.datasets.preparations


@simulated
async def test_files_of_a_folder_that_are_written_over_are_seen_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "a.txt"
    path.write_text("a\n")
    async with asyncio.TaskGroup() as tasks:
        watched = Watched(tasks, tmp_path / "kept")
        watched.datasets.set_required(want(tmp_path / "d"))
        await asyncio.sleep(2)
        path.write_text("a\nb\n")  # the folder's own time stays
        await asyncio.sleep(700)
        assert watched.last == ("Ready", "", "2 samples")
        (tmp_path / "d" / "b.txt").write_text("c\n")
        await asyncio.sleep(62)
        assert watched.last == ("Ready", "", "3 samples")
        watched.datasets.set_required({})


@simulated
async def test_a_dataset_that_is_missing_or_broken_heals(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    async with asyncio.TaskGroup() as tasks:
        watched = Watched(tasks, tmp_path / "kept")
        watched.datasets.set_required(want(path, "coco"))
        await asyncio.sleep(2)
        assert watched.last[:2] == ("Failed", "DatasetNotFound")
        path.write_text("[]")
        await asyncio.sleep(20)
        assert watched.last[:2] == ("Failed", "DatasetUnreadable")
        await asyncio.sleep(3600)
        assert watched.counts == 1  # the same file is not tried again and again
        path.write_text('{"images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2}], "categories": []}')
        await asyncio.sleep(20)
        told = "1 samples, 1 broken: data.json: images[1]: image 2 has no file_name"
        assert watched.last == ("Ready", "", told)
        watched.datasets.set_required({})


@pytest.mark.parametrize(
    ("url", "phase", "reason", "message"),
    [
        ("s3://user:secret@bucket/images", "Ready", "NotCounted", "not counted: s3:// is not supported"),
        ("https://host/images.csv", "Ready", "NotCounted", "only files and folders of the node"),
        ("file://elsewhere/images", "Failed", "InvalidURL", "file:///"),
        ("/data", "Failed", "UnsupportedFormat", "use one of coco, csv"),
    ],
)
@simulated
async def test_what_cannot_be_counted_here_says_so(
    tmp_path: Path, url: str, phase: str, reason: str, message: str
) -> None:
    (tmp_path / "data").mkdir()
    async with asyncio.TaskGroup() as tasks:
        watched = Watched(tasks, tmp_path / "kept")
        watched.datasets.set_required(want(url.replace("/data", str(tmp_path / "data")), "hdf5"))
        await asyncio.sleep(5)
        assert watched.last[:2] == (phase, reason)
        assert message in watched.last[2]
        assert "secret" not in watched.last[2]
        watched.datasets.set_required({})


@simulated
async def test_what_was_kept_of_datasets_long_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = tmp_path / "data.txt", tmp_path / "kept"
    path.write_text("a\n")
    async with asyncio.TaskGroup() as tasks:
        watched = Watched(tasks, kept)
        watched.datasets.set_required(want(path))
        await asyncio.sleep(2)
        before = list(kept.iterdir())
        assert len(before) == 1
        monkeypatch.setattr("services.lc.dataset_counts.KEPT_S", -1.0)
        other = Key("datasets", "default", "other")
        watched.datasets.set_required({other: RequiredFile(other, "v", 1, str(path), format="txt")})
        await asyncio.sleep(2)
        assert len(list(kept.iterdir())) == 1
        assert list(kept.iterdir()) != before
        watched.datasets.set_required({})


def dataset(path: Path, form: str = "txt", generation: int = 1) -> dict[str, Any]:
    body = {**model("images"), "kind": "Dataset", "spec": {"url": str(path), "format": form}}
    return {**body, "metadata": {**body["metadata"], "generation": generation}}


@simulated
async def test_a_node_reports_what_is_in_its_dataset(tmp_path: Path) -> None:
    node, path = World(tmp_path), tmp_path / "data.csv"
    path.write_text("x,label\n1,cat\n2,cat\n3,dog\n")
    async with node.gm.running(), node.lc():
        await node.gm.insert(dataset(path, "csv"))
        status = await node.gm.reaches(IMAGES, "Ready")
        assert status.dataset is not None
        assert status.dataset.number_of_samples == 3
        assert [(each.name, each.count) for each in status.dataset.classes] == [("cat", 2), ("dog", 1)]
        assert status.message == "3 samples, 2 classes"


@simulated
async def test_an_edge_worker_waits_for_its_dataset_and_is_never_stopped_for_it(tmp_path: Path) -> None:
    node, path = World(tmp_path), tmp_path / "data.txt"
    async with node.gm.running(), node.lc():
        body = service()
        body["spec"]["dataset"] = {"name": "images"}
        await node.gm.insert(model(), dataset(path), body)
        await node.gm.reaches(HELMET, "Pending", "DatasetNotReady")
        why = f"Dataset images: {path} does not exist on this node"
        await eventually(lambda: why in node.gm.statuses[HELMET].message, 30)
        assert not node.launcher.alive
        path.write_text("a\n")
        await eventually(lambda: node.launcher.alive, 60)
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")
        (before,) = node.launcher.alive
        await node.gm.insert(dataset(tmp_path / "elsewhere", generation=2))
        await node.gm.reaches(HELMET, "Pending", "DatasetNotReady")
        await asyncio.sleep(300)
        assert list(node.launcher.alive) == [before]
        await node.gm.insert(dataset(path, generation=3))
        await node.gm.reaches(HELMET, "Running")
        assert list(node.launcher.alive) == [before]
