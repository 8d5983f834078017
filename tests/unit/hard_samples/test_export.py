"""Kept samples as a data set: who is believed, where each goes, and what a manifest says of it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import InvalidFieldError
from halimede.evaluation.data import read_labelled
from halimede.frames import encode_image
from halimede.hard_samples.export import Export, as_json, class_folder
from halimede.messages import KeptReply, KeptSample, Prediction
from tests.unit.hard_samples.samples import box, sample

np = pytest.importorskip("numpy")
PNG = encode_image(np.zeros((4, 8), np.uint8))


def reply(kept: KeptSample) -> KeptReply:
    return KeptReply(worker="e", namespace="default", service="digits", node="edge0", sample=kept, data=PNG)


def exported(folder: Path, by: str, form: str, *samples: KeptSample) -> Export:
    made = Export(folder, by, form)  # type: ignore[arg-type]
    made.open()
    for each in samples:
        made.add(reply(each))
    made.close()
    return made


def test_a_folder_of_classes_by_either_model(tmp_path: Path) -> None:
    samples = [sample(1), sample(2, label="7"), sample(3, by="edge", degraded=True, reason="no-cloud", label="3")]
    cloud = exported(tmp_path / "cloud", "cloud", "folder", *samples)
    assert (cloud.written, cloud.skipped) == ({"5": 1, "7": 1}, {"the cloud gave no answer": 1})
    assert exported(tmp_path / "edge", "edge", "folder", *samples).written == {"3": 3}
    assert read_labelled(tmp_path / "cloud").truths == ["5", "7"]
    lines = [json.loads(line) for line in (tmp_path / "cloud" / "manifest.jsonl").read_text().splitlines()]
    first = lines[0]
    assert first["file"] == f"5/{1:032x}.png"
    assert first["edge"] == {"worker": "e", "model": "v1", "digest": "d" * 64, "label": "3", "score": 0.4}
    assert (first["final"]["by"], first["final"]["worker"], first["final"]["model"]) == ("cloud", "c", "v2")


def test_boxes_as_coco(tmp_path: Path) -> None:
    kept = sample(1, label=None, boxes=[box("cat"), box(3)], edge=Prediction(boxes=[]))
    made = exported(tmp_path / "out", "cloud", "coco", kept, sample(2))
    assert dict(made.skipped) == {"the answer has no boxes": 1}
    told = json.loads((tmp_path / "out" / "annotations.json").read_text())
    assert [each["name"] for each in told["categories"]] == ["3", "cat"]
    assert told["images"] == [{"id": 1, "file_name": f"images/{1:032x}.png", "width": 8, "height": 4}]
    assert [each["bbox"] for each in told["annotations"]] == [[1, 2, 10, 20]] * 2
    read = read_labelled(tmp_path / "out")
    assert read.boxes is not None
    assert sorted(str(each.label) for each in read.boxes[0]) == ["3", "cat"]
    exported(tmp_path / "edge", "edge", "coco", kept)
    assert json.loads((tmp_path / "edge" / "annotations.json").read_text())["annotations"] == []


def test_names_are_written_as_people_read_them(tmp_path: Path) -> None:
    kept = sample(1, label=None, boxes=[box("Größe 日本")], edge=Prediction(boxes=[]))
    exported(tmp_path / "out", "cloud", "coco", kept)
    for name in ("annotations.json", "manifest.jsonl"):
        assert "Größe 日本" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_times_are_moments_and_an_unknown_one_is_empty(tmp_path: Path) -> None:
    known = sample(1)
    unknown = msgspec.structs.replace(known, result=msgspec.structs.replace(known.result, captured_ns=0))
    at = msgspec.structs.replace(known, result=msgspec.structs.replace(known.result, captured_ns=1_700_000_000 * 10**9))
    assert as_json(reply(unknown))["capturedAt"] == ""
    assert as_json(reply(at))["capturedAt"].startswith("2023-11-14 22:13:20")


@pytest.mark.parametrize("form", ["folder", "coco"])
def test_of_no_sample_the_folder_stays_empty_for_the_next_time(form: str, tmp_path: Path) -> None:
    for _ in range(2):
        exported(tmp_path / "out", "cloud", form)
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InvalidFieldError, match="name a new folder, or an empty one"):
        Export(tmp_path, "cloud", "folder").open()


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_a_label_never_leaves_the_folder_and_two_never_meet(one: str, other: str) -> None:
    names = [class_folder(one), class_folder(other)]
    for name in names:
        assert not {"/", "\0"} & set(name)
        assert name not in {"", ".", ".."}
        assert len(name.encode()) <= 255
    assert (one == other) == (names[0] == names[1])


@pytest.mark.parametrize(
    "label", ["../../x", "/etc/x", "manifest.jsonl", "annotations.json", "\U00020000" * 80, "é" * 999]
)
def test_odd_labels_are_folders_like_all_others(label: str, tmp_path: Path) -> None:
    made = exported(tmp_path / "out", "cloud", "folder", sample(1, label=label), sample(2))
    assert made.written[label] == 1
    assert {file.parent.parent for file in tmp_path.rglob("*.png")} == {tmp_path / "out"}
    assert len(read_labelled(tmp_path / "out").truths or ()) == 2
