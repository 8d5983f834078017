"""What is stored of a sample, which requests it fits, and what the worker replies to requests."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import TooLargeError
from halimede.frames import new_frame
from halimede.hard_samples import store as store_module
from halimede.hard_samples.store import (
    DISK_BLOCK,
    REMOVED_ERROR,
    HardSampleServer,
    HardSampleStore,
    describe,
    entry,
    labels,
    last_stored,
    matches,
    picture,
    stored_samples,
)
from halimede.messages import KeptReply, KeptRequest, KeptSample, PersonLabel, Prediction
from tests.unit.hard_samples.samples import box, sample

NAMES = {"namespace": "default", "service": "digits", "worker": "w0", "node": "edge0"}
DATA = b"picture"


def stored(folder: Path, count: int = 3, **bounds: int) -> HardSampleStore:
    samples = HardSampleStore(folder, bounds.get("most_bytes", 10**9), bounds.get("most_samples", 1000))
    samples.open()
    for number in range(1, count + 1):
        samples.add(sample(number), DATA)
    return samples


@pytest.mark.parametrize(
    ("wanted", "does_fit"),
    [
        ({}, True), ({"camera": "cam0"}, True), ({"camera": "cam1"}, False), ({"by": "cloud"}, True),
        ({"by": "edge"}, False), ({"reason": "Margin"}, True), ({"reason": "Entropy"}, False), ({"label": "5"}, True),
        ({"label": "3"}, True), ({"label": "4"}, False), ({"disagree": True}, True), ({"stratum": "hard"}, True),
        ({"stratum": "easy"}, False), ({"since_ns": 7 * 10**9}, True), ({"since_ns": 7 * 10**9 + 1}, False),
        ({"camera": "cam0", "by": "edge"}, False),
    ],
)  # fmt: skip
def test_a_sample_fits_a_request_in_all_its_fields(wanted: dict[str, Any], does_fit: bool) -> None:
    assert matches(sample(7, reason="Margin"), KeptRequest(**wanted)) is does_fit


def test_models_disagree_only_if_both_answered_with_different_labels() -> None:
    wanted = KeptRequest(disagree=True)
    assert not matches(sample(1, edge=None), wanted)
    assert not matches(sample(1, label="3"), wanted)
    assert matches(sample(1, audit=True, hard=False), KeptRequest(stratum="easy"))
    assert not matches(sample(1, audit=True, hard=False), KeptRequest(stratum="hard"))


def test_labels_of_a_sample_are_those_of_both_models_and_of_boxes() -> None:
    assert list(labels(sample(1))) == ["3", "5"]
    assert list(labels(sample(1, edge=None))) == ["5"]
    assert list(labels(sample(1, edge=None, label=None, boxes=[box(2), box("car")]))) == ["2", "car"]


def test_long_texts_of_a_sample_are_cut_in_its_summary() -> None:
    long = "x" * 2000
    edge = Prediction(label=long[:1024], score=0.4)
    found = entry(sample(1, label=long[:1024], edge=edge), 9)
    assert (len(found.label), len(found.edge_label), found.number, found.kept_ns) == (1024, 1024, 9, 10**9)
    assert (found.edge_score, found.score) == (0.4, 0.9)
    absent = entry(sample(1, label=None, edge=None), 9)
    assert (absent.label, absent.edge_label, absent.edge_score) == ("", "", None)
    base = sample(1)
    made = describe(base.result, None, namespace="n", now_ns=5, model="m" * 300, digest="d" * 300)
    assert (made.edge_model, made.edge_digest, made.edge, made.audit_share) == ("m" * 256, "d" * 256, None, 0.0)


def test_features_of_both_answers_are_left_out_and_all_else_stays() -> None:
    found = sample(1)
    assert (found.edge.embeddings, found.edge.label, found.edge.score) == (None, "3", 0.4)
    result = msgspec.structs.replace(found.result, prediction=Prediction(label="5", score=0.9, embeddings=b"1234"))
    again = describe(result, None, namespace="n", now_ns=5, model="m", digest="d")
    assert (again.result.prediction.embeddings, again.result.prediction.label) == (None, "5")


@pytest.mark.parametrize(
    ("shape", "dtype", "form", "size"),
    [
        *((shape, np.uint8, "png", (6, 4)) for shape in ((4, 6), (4, 6, 1), (4, 6, 3))),
        *((shape, np.uint8, "npy", (0, 0)) for shape in ((4, 6, 2), (4, 6, 4), (6,), (2, 4, 6, 3))),
        *((shape, np.float32, "npy", (0, 0)) for shape in ((4, 6), (4, 6, 3))),
    ],
)
def test_pixels_are_stored_as_a_picture_if_they_are_one(
    shape: tuple[int, ...], dtype: Any, form: str, size: tuple[int, int]
) -> None:
    pixels = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    image, data = picture(new_frame(pixels, camera="cam"))
    assert (image.form, (image.width, image.height), image.size) == (form, size, len(data))
    if form == "npy":
        assert np.array_equal(np.load(io.BytesIO(data)), pixels)


def test_an_encoded_frame_is_stored_as_it_is() -> None:
    frame = new_frame(np.zeros((4, 6), np.uint8), camera="cam", encoding="png")
    image, data = picture(frame)
    assert (data, image.form, image.width, image.height) == (bytes(frame.data), "png", 6, 4)


def test_a_page_ends_with_the_last_sample_and_another_one_follows_otherwise(tmp_path: Path) -> None:
    samples = stored(tmp_path, 3)
    numbers = [summary.number for summary in samples.page(KeptRequest()).entries]
    assert numbers == [3, 2, 1]
    for limit, following in ((1, 3), (2, 2), (3, 0), (4, 0)):
        page = samples.page(KeptRequest(limit=limit))
        assert ([summary.number for summary in page.entries], page.next) == (numbers[:limit], following)
    assert [summary.number for summary in samples.page(KeptRequest(before=2)).entries] == [1]


@pytest.mark.parametrize(("read", "following"), [(1, 3), (2, 2), (3, 0), (4, 0)])
def test_a_search_goes_on_after_the_samples_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, following: int
) -> None:
    samples = stored(tmp_path, 3)
    monkeypatch.setattr(store_module, "MAX_READ", read)
    page = samples.page(KeptRequest(camera="cam9"))
    assert (page.entries, page.next) == ([], following)


def test_a_sample_that_just_fits_is_stored_and_a_larger_one_is_not(tmp_path: Path) -> None:
    samples = HardSampleStore(tmp_path, 2 * DISK_BLOCK, 10)
    samples.add(sample(1), b"x" * DISK_BLOCK)
    assert (len(samples), samples.bytes, samples.added) == (1, 2 * DISK_BLOCK, 1)
    with pytest.raises(TooLargeError):
        samples.add(sample(2), b"x" * (DISK_BLOCK + 1))
    assert (sample(1).id in samples, len(samples), samples.added) == (True, 1, 1)
    samples.add(sample(3), DATA)
    assert (sample(1).id in samples, sample(3).id in samples, samples.bytes) == (False, True, 2 * DISK_BLOCK)


def test_a_folder_is_read_once_and_not_with_each_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, reads, scandir = stored(tmp_path, 2), list[Path](), os.scandir

    def scan(path: Path) -> Any:
        reads.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    again = HardSampleStore(tmp_path, 10**9, 10)
    again.open()
    again.page(KeptRequest())
    assert reads == [tmp_path]
    samples.get(sample(1).id)
    samples.add(sample(3), DATA)
    assert reads == [tmp_path]


def test_the_first_label_of_a_sample_is_reported_once(tmp_path: Path) -> None:
    samples, first = stored(tmp_path, 1), list[KeptSample]()
    samples.first_labelled = first.append
    id_ = sample(1).id
    for by in ("anna", "bert", "anna"):
        assert samples.label(id_, PersonLabel(label="1", by=by)) is not None
    assert [[label.by for label in labelled.labels] for labelled in first] == [["anna"]]
    assert samples.label(sample(2).id, PersonLabel(label="1", by="anna")) is None


def test_documents_of_another_process_are_read_by_age_up_to_the_last(tmp_path: Path) -> None:
    assert last_stored(tmp_path) == ""
    stored(tmp_path, 3)
    (tmp_path / "zzz.json").write_text("{}")
    (tmp_path / f"000000000009-{'0' * 32}.json").write_text("{")
    names = sorted(path.name for path in tmp_path.glob("0*.json"))
    assert last_stored(tmp_path) == names[-1]
    options: dict[str, Any]
    for options, numbers in (({}, [1, 2, 3]), ({"newest_first": True}, [3, 2, 1]), ({"last": names[1]}, [1, 2])):
        assert [int(document.id, 16) for document, _ in stored_samples(tmp_path, **options)] == numbers
    assert all(path.read_bytes() == DATA for _, path in stored_samples(tmp_path))


class Inline:
    """Runs blocking work at once."""

    async def call(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        return work(*args, **kwargs)


class Requests:
    """A worker's server, whose replies the test reads."""

    def __init__(self, folder: Path, classes: tuple[str, ...] = ()) -> None:
        self.samples = stored(folder, 3)
        self.server = HardSampleServer(MemoryBus("w0", MemoryBroker()), self.samples, NAMES, Inline(), classes)

    async def reply(self, **fields: Any) -> KeptReply | None:
        delivery: Any = type("Request", (), {"body": KeptRequest(**fields)})
        return await self.server._answer(delivery)


async def test_a_worker_replies_to_requests_for_all_or_for_itself_alone(tmp_path: Path) -> None:
    worker = Requests(tmp_path)
    for fields in ({}, {"worker": "w0"}, {"namespace": "default", "service": "digits"}, NAMES):
        reply = await worker.reply(**fields)
        assert (reply.samples, reply.room, reply.worker, reply.node) == (3, worker.samples.bytes, "w0", "edge0")
        assert len(reply.entries) == 3
    for name in NAMES:
        assert await worker.reply(**{**NAMES, name: "other"}) is None


async def test_a_sample_that_is_not_here_is_an_error_only_of_the_worker_that_was_named(tmp_path: Path) -> None:
    worker = Requests(tmp_path)
    reply = await worker.reply(id=sample(2).id)
    assert (reply.sample is not None, reply.data, reply.error) == (True, DATA, "")
    person = PersonLabel(label="1", by="anna")
    for more in ({}, {"person": person}):
        assert await worker.reply(id=sample(9).id, **more) is None
        named = await worker.reply(id=sample(9).id, worker="w0", **more)
        assert named.error == REMOVED_ERROR


async def test_a_label_that_is_no_class_is_refused_where_the_sample_is(tmp_path: Path) -> None:
    worker = Requests(tmp_path, ("1", "2"))
    wrong, right = PersonLabel(label="9", by="anna"), PersonLabel(label="2", by="anna")
    assert await worker.reply(id=sample(9).id, person=wrong) is None
    refused = await worker.reply(id=sample(1).id, person=wrong)
    assert refused.error == "label '9' is no class of the model: use one of 1, 2"
    stored_label = await worker.reply(id=sample(1).id, person=right)
    assert stored_label.sample.labels == [right]


async def test_a_store_that_cannot_be_read_says_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Requests(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(worker.samples, "page", fails)
    reply = await worker.reply()
    assert reply.error == "its store cannot be read: Input/output error"
