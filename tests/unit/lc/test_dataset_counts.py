"""The Datasets of a node in simulated time: when they are counted, what is said of them, and who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.datasets import Counted, DatasetError, count
from halimede.datasets.count_process import CountJob
from halimede.datasets.count_report import Progress
from halimede.models import FetchError, FetchReason
from halimede.names import Key
from services.lc.dataset_counts import Datasets
from services.lc.planning.resource_state import RequiredFile
from tests.integration.lc_world import HELMET, World, model, service
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

IMAGES = Key("datasets", "default", "images")
UNUSABLE = "have no usable sample: correct the data, or spec.format"


class Watched:
    """Datasets with a counter that remembers how often it was asked."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        self.counts = 0
        self.changes: list[tuple[str, str, str]] = []
        self.answers: list[FetchError | None] = []
        self.datasets = Datasets(tasks, self._changed, folder, self._count, self._probe)

    async def _probe(self, url: str) -> None:
        """Answer as a test has laid down; the last answer stands."""
        if error := self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
            raise error

    async def _count(self, job: CountJob, told: Callable[[Progress], None]) -> Counted:
        self.counts += 1
        told(Progress(done=50, total=100, samples=7))
        await asyncio.sleep(1)
        return count(job.path, job.format, job.ledger)

    def _changed(self, key: Key) -> None:
        known = self.datasets.preparations[key]
        self.changes.append((known.phase, known.reason, known.message))

    async def require(self, path: Path | str, form: str = "txt", generation: int = 1, *, seconds: float = 2) -> None:
        """Require a Dataset, and wait for its count."""
        self.datasets.set_required({IMAGES: RequiredFile(IMAGES, "u", generation, str(path), format=form)})
        await asyncio.sleep(seconds)

    @property
    def last(self) -> tuple[str, str, str]:
        return self.changes[-1]


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with asyncio.TaskGroup() as tasks:
        watch = Watched(tasks, tmp_path / "kept")
        yield watch
        watch.datasets.set_required({})


async def test_a_dataset_is_counted_at_once_and_again_when_it_changes(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("a\nb\n")
    await watched.require(path)
    assert watched.changes == [("Pending", "Counting", "counting: 50 %, 7 samples so far"), ("Ready", "", "2 samples")]
    await asyncio.sleep(3600)
    assert (watched.counts, len(watched.changes)) == (1, 2)
    with path.open("a") as file:
        file.write("c\n")
    await asyncio.sleep(62)
    assert watched.last == ("Ready", "", "3 samples")
    assert watched.changes[-2][0] == "Ready"  # what is known stays known meanwhile
    assert watched.datasets.facts[IMAGES].number_of_samples == 3
    await watched.require(path, "csv", 2)  # an edit is no reason to wait
    assert watched.last == ("Ready", "", "2 samples")
    watched.datasets.set_required({})
    assert not watched.datasets.preparations


async def test_files_of_a_folder_that_are_written_over_are_seen_in_the_end(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "a.txt"
    path.write_text("a\n")
    await watched.require(tmp_path / "d")
    path.write_text("a\nb\n")  # the folder's own time stays
    await asyncio.sleep(700)
    assert watched.last == ("Ready", "", "2 samples")
    (tmp_path / "d" / "b.txt").write_text("c\n")
    await asyncio.sleep(62)
    assert watched.last == ("Ready", "", "3 samples")


async def test_a_dataset_that_is_missing_or_broken_heals(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    await watched.require(path, "coco")
    assert watched.last[:2] == ("Failed", "DatasetNotFound")
    path.write_text("[]")
    await asyncio.sleep(20)
    assert watched.last[:2] == ("Failed", "DatasetUnreadable")
    await asyncio.sleep(3600)
    assert watched.counts == 2  # the same file is not tried again and again
    path.write_text('{"images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2}], "categories": []}')
    await asyncio.sleep(20)
    told = "1 samples, 1 broken: data.json: images[1]: image 2 has no file_name"
    assert watched.last == ("Ready", "", told)


@pytest.mark.parametrize(
    ("url", "state", "message"),
    [
        ("s3://user:secret@bucket/images", ("Ready", "NotCounted"), "s3://***@bucket/images answers"),
        ("https://host/images.csv", ("Ready", "NotCounted"), "not counted: only files and folders of a node are"),
        ("file://elsewhere/images", ("Failed", "InvalidURL"), "file:///"),
        ("/data", ("Failed", "UnsupportedFormat"), "use one of coco, csv"),
    ],
)
async def test_what_cannot_be_counted_here_says_so(
    watched: Watched, tmp_path: Path, url: str, state: tuple[str, str], message: str
) -> None:
    (tmp_path / "data").mkdir()
    watched.answers = [None]
    await watched.require(url.replace("/data", str(tmp_path / "data")), "hdf5", seconds=5)
    assert watched.last[:2] == state
    assert message in watched.last[2]
    assert "secret" not in watched.last[2]


async def test_a_dead_address_is_not_ready_and_heals(watched: Watched) -> None:
    down = FetchError(FetchReason.UNREACHABLE, "https://host/a.csv cannot be reached: refused", temporary=True)
    gone = FetchError(FetchReason.NOT_FOUND, "https://host/a.csv answered with HTTP status 404", status=404)
    watched.answers = [down, gone, None, down]
    await watched.require("https://host/a.csv", "csv", seconds=5)
    advice = "correct spec.url, or make the data available there"
    assert watched.last == ("Pending", "Unreachable", f"{down}: {advice}")
    await asyncio.sleep(60)
    assert watched.last == ("Failed", "NotFound", f"{gone}: {advice}")
    await asyncio.sleep(60)
    assert watched.last[:2] == ("Ready", "NotCounted")
    await asyncio.sleep(610)
    assert watched.last[:2] == ("Pending", "Unreachable")


async def test_data_that_vanishes_or_is_not_readable_is_reported_and_heals(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("a\n")
    await watched.require(path)
    assert watched.last == ("Ready", "", "1 samples")
    path.unlink()
    await asyncio.sleep(65)
    told = f"{path} does not exist on this node: put it there, or correct spec.url"
    assert watched.last == ("Failed", "DatasetNotFound", told)
    assert IMAGES not in watched.datasets.facts
    path.write_text("a\nb\n")
    await asyncio.sleep(20)
    assert watched.last == ("Ready", "", "2 samples")


async def test_permissions_that_were_corrected_are_noticed(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, forbidden = tmp_path / "data.txt", True
    path.write_text("a\n")
    # tests may run as root, who may read everything
    monkeypatch.setattr("os.access", lambda *_: not forbidden)
    before = watched.datasets._count

    async def refuse(job: CountJob, told: Callable[[Progress], None]) -> Counted:
        if forbidden:
            raise DatasetError("DatasetUnreadable", f"{job.path} cannot be read: Permission denied")
        return await before(job, told)

    watched.datasets._count = refuse
    await watched.require(path)
    assert watched.last[1] == "DatasetUnreadable"
    forbidden = False  # neither size nor time of the file change
    await asyncio.sleep(80)
    assert watched.last == ("Ready", "", "1 samples")


async def test_a_dataset_that_waits_for_the_count_of_another_says_so(watched: Watched, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\n")
    keys = [Key("datasets", "default", name) for name in ("a", "b")]
    required = {key: RequiredFile(key, "u", 1, str(tmp_path / key.name), format="txt") for key in keys}
    watched.datasets.set_required(required)
    await asyncio.sleep(0.5)
    told = [watched.datasets.preparations[key] for key in keys]
    assert [each.phase for each in told] == ["Pending", "Pending"]
    assert "waiting for the count of another Dataset of this node" in {each.message for each in told}
    await asyncio.sleep(3)
    assert all(watched.datasets.preparations[key].phase == "Ready" for key in keys)


async def test_what_was_kept_of_datasets_long_gone_is_removed(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "data.txt", tmp_path / "kept"
    path.write_text("a\n")
    await watched.require(path)
    before = list(kept.iterdir())
    assert len(before) == 1
    monkeypatch.setattr("services.lc.dataset_counts.LEDGER_KEEP_S", -1.0)
    other = Key("datasets", "default", "other")
    watched.datasets.set_required({other: RequiredFile(other, "v", 1, str(path), format="txt")})
    await asyncio.sleep(2)
    assert len(list(kept.iterdir())) == 1
    assert list(kept.iterdir()) != before


def dataset(path: Path | str, form: str = "txt", generation: int = 1, **spec: Any) -> dict[str, Any]:
    body = {**model("images", generation=generation), "kind": "Dataset"}
    return {**body, "spec": {"url": str(path), "format": form, **spec}}


@pytest.mark.parametrize(
    ("files", "reason", "message"),
    [
        ({"a.csv": "x,label\n"}, "NoSamples", f"8 bytes {UNUSABLE} (csv); 0 samples"),
        ({"a.xml": "<a/>"}, "NoSamples", f"4 bytes {UNUSABLE} (voc); 0 samples"),
        ({"a.json": "[]"}, "NoSamples", f"the files {UNUSABLE} (coco); 0 samples"),
        ({"a.csv": "x\n1\n", "b.csv": "x\n1\n"}, "SamplesRepeated", "a.csv and b.csv list the same samples"),
        ({"a.csv": "x\n1\n", "b.csv": "x\n2\n"}, "", "2 samples"),
        ({"a.csv": ""}, "", "0 samples"),
    ],
)
async def test_a_count_that_is_probably_not_meant_says_so(
    node: World, tmp_path: Path, files: dict[str, str], reason: str, message: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    form = {".csv": "csv", ".xml": "voc", ".json": "coco"}[Path(name).suffix]
    await node.gm.insert(dataset(folder, form))
    status = await node.gm.reaches(IMAGES, "Ready", reason)
    assert message in status.message


async def test_an_edge_worker_does_not_wait_for_data_elsewhere(node: World) -> None:
    body = service()
    body["spec"]["dataset"] = {"name": "images"}
    await node.gm.insert(model(), dataset("https://dead.example/images.csv"), body)
    await node.gm.reaches(IMAGES, "Pending", "Unreachable")
    await eventually(lambda: node.launcher.alive, 60)


async def test_an_edge_worker_waits_for_its_dataset_and_is_never_stopped_for_it(node: World, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    body = service()
    body["spec"]["dataset"] = {"name": "images"}
    await node.gm.insert(model(), dataset(path), body)
    await node.gm.reaches(HELMET, "Pending", "DatasetNotReady")
    why = f"Dataset images: {path} does not exist on this node"
    await eventually(lambda: why in node.gm.statuses[HELMET].message, 30)
    assert not node.launcher.alive
    path.write_text("a\n")
    await eventually(lambda: node.launcher.alive, 60)
    await node.works()
    (before,) = node.launcher.alive
    await node.gm.insert(dataset(tmp_path / "elsewhere", generation=2))
    await node.gm.reaches(HELMET, "Pending", "DatasetNotReady")
    await asyncio.sleep(300)
    assert list(node.launcher.alive) == [before]
    await node.gm.insert(dataset(path, generation=3))
    await node.gm.reaches(HELMET, "Running")
    assert list(node.launcher.alive) == [before]


@asynccontextmanager
async def pods_node(tmp_path: Path) -> AsyncIterator[tuple[World, Path]]:
    """A node whose controller runs in a pod: its node's folders are mounted at that path."""
    node, host = World(tmp_path / "home"), tmp_path / "host"
    node.config = replace(node.config, pods=True, host_root=host)
    host.mkdir()
    async with node.gm.running(), node.lc():
        yield node, host


async def test_a_controller_in_a_pod_counts_what_is_mounted_into_it(tmp_path: Path) -> None:
    async with pods_node(tmp_path) as (node, host):
        (host / "data").mkdir()
        (host / "data" / "a.csv").write_text("x,label\n1,cat\n2,dog\n")
        await node.gm.insert(dataset("/data/a.csv", "csv"))
        status = await node.gm.reaches(IMAGES, "Ready")
        assert (status.dataset.number_of_samples, status.message) == (2, "2 samples, 2 classes")
        await node.gm.insert(dataset("/data", "coco", generation=2))
        status = await node.gm.reaches(IMAGES, "Failed", "DatasetUnreadable")
        assert status.message == "/data has no file that ends with .json"  # paths are those of the node


async def test_a_folder_that_is_not_mounted_is_named_with_what_to_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods_node(tmp_path) as (node, host):
        own = tmp_path / "a.txt"  # a file of the pod itself is none of the node
        own.write_text("secret\n")
        await node.gm.insert(dataset(own))
        status = await node.gm.reaches(IMAGES, "Failed", "HostPathNotMounted")
        assert f"mount {tmp_path} of the node at {host}{tmp_path}" in status.message
        monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == host / "data")
        await node.gm.insert(dataset("/data/a.txt", generation=2))
        status = await node.gm.reaches(IMAGES, "Failed", "DatasetNotFound")
        assert status.message == "/data/a.txt does not exist on this node: put it there, or correct spec.url"
        (host / "data").mkdir()
        (host / "data" / "a.txt").write_text("a\n")
        await node.gm.reaches(IMAGES, "Ready")


@pytest.mark.parametrize("url", ["/data/{}", "/data/../{}", "/data/../../{}", "/data/folder", "/data/folder/{}"])
async def test_no_link_leads_out_of_what_is_mounted(tmp_path: Path, url: str) -> None:
    async with pods_node(tmp_path) as (node, host):
        (tmp_path / "password.csv").write_text("x,label\n1,secret\n")
        (host / "data").mkdir()
        (host / "data" / "password.csv").symlink_to(tmp_path / "password.csv")
        (host / "data" / "folder").symlink_to(tmp_path)
        await node.gm.insert(dataset("/", "csv"))
        await node.gm.insert(dataset(url.format("password.csv"), "csv", generation=2))
        status = await node.gm.reaches(IMAGES, "Failed", generation=2)
        assert status.dataset is None
        await node.gm.insert(dataset("/data", "csv", generation=3))
        await eventually(lambda: node.gm.statuses[IMAGES].observed_generation == 3, 60)
        await node.gm.reaches(IMAGES, "Ready", generation=3)
        facts = node.gm.statuses[IMAGES].dataset
        assert (facts.number_of_samples, facts.classes, facts.number_broken) == (0, [], 1)
        assert "a link leads out of the folders that are mounted" in facts.broken[0].reason


async def test_data_that_only_pods_have_credentials_for_is_left_to_them(tmp_path: Path) -> None:
    async with pods_node(tmp_path) as (node, _):
        await node.gm.insert(dataset("s3://bucket/a.csv", credentialName="s3"))
        await node.gm.reaches(IMAGES, "Ready", "LeftToPods")
