"""Kept samples of a service as a trainer's data, and the comparison and calibration of what was trained on them."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede.api.learning_loop import GateSettings
from halimede.errors import HalimedeError
from halimede.hard_samples.store import HardSampleStore, last_stored
from halimede.hard_samples.stream_counts import MINING as MINING_FILE
from halimede.hard_samples.stream_counts import StreamCounts
from halimede.inference.file_model import FileModel
from halimede.learning_loop.gate import Evidence, decide
from halimede.messages import PersonLabel, Prediction
from halimede.mining import create
from halimede.mining.calibration_file import CalibrationFile
from halimede.training.candidate import compare_step
from halimede.training.child import carry_out
from halimede.training.child_messages import TrainingTask
from halimede.training.data import NodeData, SampleCache, TrainingDataError, read_data
from halimede.training.kept_data import KeptData, _read, read_kept, with_replay
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from tests.kept_samples import MINING, SHARE, SPEC, drifted, halves, keep, sure, trained
from tests.training_world import LABELS, write


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder of a store after a drift, the present model's file, its weights, and counts of the stream."""
    folder = tmp_path_factory.mktemp("kept")
    weights, small = trained(*halves()[0], folder / "present.onnx")
    return folder, weights, keep_some(folder / "hard", small)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> FileModel:
    return trained(*halves()[0], tmp_path_factory.mktemp("small") / "m.onnx")[1]


def keep_some(folder: Path, small: FileModel, count: int | None = None, **more: Any) -> dict[str, int]:
    rows, labels = halves()[1]
    return keep(folder, small, drifted(rows)[:count], labels[:count], **more)


@pytest.fixture
def data(kept: Any) -> KeptData:
    return read_kept(kept[0] / "hard", SPEC)


def candidate(data: TrainingData, weights: Any, path: Path) -> Path:
    trainer = Perceptron(hidden="32", epochs="20")
    found, _ = trainer.train(data, weights)
    trainer.export(found, path)
    return path


@pytest.fixture
def model(kept: Any, data: KeptData, tmp_path: Path) -> Path:
    return candidate(data.node.train, kept[1], tmp_path / "m.onnx")


def compared(kept: KeptData, model: Path, folder: Path, reference: NodeData | None = None) -> tuple[Evidence, str]:
    evidence, calibration = compare_step(model, str(folder / "present.onnx"), SPEC, kept, reference)
    return msgspec.json.decode(evidence, type=Evidence), calibration


def refusal(folder: Path, text: str | None = None, **options: Any) -> str:
    with pytest.raises(TrainingDataError, match=text) as caught:
        read_kept(folder, SPEC, **options)
    return caught.value.reason


def test_samples_that_judge_are_never_trained_on_and_stay_apart_when_others_come(
    data: KeptData, small: FileModel, tmp_path: Path
) -> None:
    known = {row.tobytes() for row in data.node.train.samples}
    assert data.judged
    assert not any(each.pixels.tobytes() in known for each in data.judged)
    keep_some(tmp_path / "hard", small, 500)
    part = read_kept(tmp_path / "hard", SPEC)
    held = {each.pixels.tobytes() for each in data.judged}
    assert {each.pixels.tobytes() for each in part.judged} <= held


def test_the_training_set_has_the_shares_of_the_stream(kept: Any, data: KeptData) -> None:
    for name in ("hard", "easy"):
        assert sum(count for (_, stratum), count in data.stream.items() if stratum == name) == kept[2][name]
    assert 2000 <= len(data.node.train) <= 20_000


def test_a_candidate_comes_with_a_calibration_for_the_rule_and_budget_of_the_service(
    kept: Any, data: KeptData, model: Path
) -> None:
    _, text = compared(data, model, kept[0])
    found = msgspec.json.decode(text, type=CalibrationFile)
    assert found.rule == "Margin"
    create(found.rule, found.parameters)
    assert sum(found.reference.classes.values()) == pytest.approx(1)
    assert abs(found.metrics["upload_ratio"] - (MINING.target_upload_ratio or 0)) < 0.1
    assert len(text) < 20_000


def test_a_candidate_that_is_no_model_is_evidence_with_the_error(kept: Any, data: KeptData, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    evidence, calibration = compared(data, tmp_path / "bad.onnx", kept[0])
    assert evidence.error
    assert not decide(evidence, GateSettings()).accepted
    assert calibration == ""


def test_a_candidate_that_cannot_be_calibrated_is_evidence_with_the_begin_and_end_of_a_long_error(
    kept: Any, data: KeptData, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise HalimedeError("first " + "x" * 5000 + " last")

    monkeypatch.setattr("halimede.training.candidate.calibrate_candidate", fails)
    evidence, calibration = compared(data, model, kept[0])
    assert evidence.error.startswith("it cannot be calibrated: first ")
    assert evidence.error.endswith(" last")
    verdict = decide(evidence, GateSettings(least=50))
    assert not verdict.accepted
    assert verdict.message == evidence.error, "its middle is left out once"
    assert calibration == ""


def test_a_folder_that_cannot_be_read_is_named_once_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / MINING_FILE).mkdir()
    assert refusal(tmp_path, rf"{re.escape(str(tmp_path))} cannot be read: Is a directory\Z") == "DatasetInvalid"


def test_samples_of_the_stream_before_are_a_reminder_and_a_reference(
    kept: Any, data: KeptData, model: Path, tmp_path: Path
) -> None:
    folder, weights, _ = kept
    reference = read_data(write(tmp_path / "first.npz", *halves()[0]), SPEC)
    node = with_replay(data.node, reference)
    assert len(node.train) == pytest.approx(len(data.node.train) / 0.7, rel=0.01)
    evidence, _ = compared(data, candidate(node.train, weights, tmp_path / "both.onnx"), folder, reference)
    assert evidence.reference.samples == len(reference.held_out)
    alone, _ = compared(data, model, folder, reference)
    both = evidence.reference.both + evidence.reference.candidate
    assert both > alone.reference.both + alone.reference.candidate


def test_samples_after_the_newest_one_at_the_begin_of_a_round_do_not_count(kept: Any, data: KeptData) -> None:
    folder = kept[0] / "hard"
    names = sorted(path.name for path in folder.glob("*.json"))
    assert last_stored(folder) == names[-1]
    part, whole = (read_kept(folder, SPEC, last=last) for last in (names[len(names) // 2], names[-1]))
    assert 0 < len(part.judged) < len(whole.judged)
    assert len(whole.judged) == len(data.judged)


def test_samples_of_an_interval_in_which_a_round_begins_count_for_the_time_since_then(
    small: FileModel, tmp_path: Path
) -> None:
    begins_s, calm = 10**9 - 1, StreamCounts(tmp_path / "hard")
    for i in range(600):
        calm.observe("v1", SHARE, begins_s - 9 + i / 60, hard=i % 10 == 0)
    calm.save()
    found = keep_some(tmp_path / "hard", small, 500)
    data = read_kept(tmp_path / "hard", SPEC, since_s=begins_s)
    easy, hard = (sum(n for (_, name), n in data.stream.items() if name == stratum) for stratum in ("easy", "hard"))
    assert hard - found["hard"] == pytest.approx(6, abs=1)
    assert easy - found["easy"] == pytest.approx(54, abs=1)


def test_only_the_newest_samples_are_read_if_not_all_fit_into_memory(kept: Any, data: KeptData) -> None:
    most = 40_000
    part = read_kept(kept[0] / "hard", SPEC, most_bytes=most)
    assert part.node.train.samples.nbytes <= most < data.node.train.samples.nbytes
    newest = [each.sample.id for each in data.unseen][-len(part.unseen) :]
    assert [each.sample.id for each in part.unseen] == newest
    assert sum(each.image.nbytes + each.pixels.nbytes for each in part.unseen) <= most


def test_a_step_fills_an_eighth_of_its_memory_with_the_newest_samples(kept: Any, data: KeptData) -> None:
    def described(memory_bytes: int) -> int:
        task = TrainingTask(
            do="describe", entry="Perceptron", parameters={}, model_spec=msgspec.json.encode(SPEC).decode(),
            data=str(kept[0] / "hard"), memory_bytes=memory_bytes, seconds=60, clock_s=60, written_bytes=2**30,
        )  # fmt: skip
        found = carry_out(task, SampleCache())
        assert found.reason == ""
        return found.held_out

    samples = list(_read(kept[0] / "hard", SPEC, 0.0, None))
    sizes = sum(each.pixels.nbytes + (0 if each.image is None else each.image.nbytes) for each in samples)
    whole = described(8 * sizes)
    assert whole == len(data.judged)
    assert 0.3 * whole < described(4 * sizes) < 0.7 * whole


def test_samples_that_were_read_are_no_open_files(data: KeptData) -> None:
    assert data.unseen
    assert ".npy" not in Path("/proc/self/maps").read_text()


def test_the_label_of_a_person_counts_and_a_contested_sample_is_left_out(small: FileModel, tmp_path: Path) -> None:
    keep_some(tmp_path / "hard", small, 120, cloud=lambda label: sure(label, 0.5))
    assert refusal(tmp_path / "hard", "with a label") == "DatasetEmpty"
    store = HardSampleStore(tmp_path / "hard", 10**9, 10**6)
    store.open()
    ids = [path.stem.split("-")[1] for path in sorted((tmp_path / "hard").glob("*.json"))]
    for i, id_ in enumerate(ids):
        store.label(id_, PersonLabel(label=str(i % 10), by="anna"))
    store.label(ids[0], PersonLabel(label="9", by="bert"))
    for i, id_ in list(enumerate(ids))[1:40]:
        store.label(id_, PersonLabel(label=str(i % 10), by="bert"))
    data = read_kept(tmp_path / "hard", SPEC)
    used = {each.sample.id for each in data.judged}
    assert ids[0] not in used
    assert {each.sample.by for each in data.judged} == {"person"}


def test_labels_that_differ_too_often_stop_the_training(small: FileModel, tmp_path: Path) -> None:
    keep_some(tmp_path / "hard", small, 120)
    store = HardSampleStore(tmp_path / "hard", 10**9, 10**6)
    store.open()
    for path in sorted((tmp_path / "hard").glob("*.json")):
        id_ = path.stem.split("-")[1]
        found = store.get(id_)
        store.label(id_, PersonLabel(label=LABELS[(int(found[0].result.label or 0) + 1) % 10], by="mallory"))
    assert refusal(tmp_path / "hard") == "LabelsContested"


def test_samples_of_one_class_and_classes_that_the_model_lacks_have_their_reasons(
    small: FileModel, tmp_path: Path
) -> None:
    rows, labels = halves()[1]
    of_one = labels == 3
    keep(tmp_path / "one", small, drifted(rows)[of_one], labels[of_one])
    assert refusal(tmp_path / "one") == "DatasetOneClass"
    cat = Prediction(label="cat", score=1.0, probabilities=[1.0, 0.0])
    keep_some(tmp_path / "other", small, 50, cloud=lambda _: cat)
    assert refusal(tmp_path / "other") == "DatasetEmpty"


def test_damaged_files_of_the_store_are_left_out(small: FileModel, tmp_path: Path) -> None:
    keep_some(tmp_path / "hard", small, 300)
    whole = read_kept(tmp_path / "hard", SPEC)
    pictures = sorted((tmp_path / "hard").glob("*.npy"))
    pictures[0].unlink()
    pictures[1].write_bytes(b"\x93NUMPY")
    pictures[2].write_bytes(pictures[3].read_bytes()[:-8])
    pictures[4].write_bytes(b"")
    pictures[5].write_bytes(b"no array")
    texts = sorted((tmp_path / "hard").glob("*.json"))
    texts[-1].write_text("{")
    with (tmp_path / "hard" / "stream.jsonl").open("a") as file:
        file.write('{"untilS": ')
    part = read_kept(tmp_path / "hard", SPEC)
    assert len(part.unseen) + 6 >= len(whole.unseen)
    assert np.isfinite(part.node.train.samples).all()


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_a_picture_that_is_a_pickle_is_left_out_and_never_unpickled(small: FileModel, tmp_path: Path) -> None:
    keep_some(tmp_path / "hard", small, 100)
    whole = len(list(_read(tmp_path / "hard", SPEC, 0.0, None)))
    pictures = sorted((tmp_path / "hard").glob("*.npy"))
    pictures[0].write_bytes(pickle.dumps(Harmful(tmp_path / "harm")))
    np.save(pictures[1], np.array([Harmful(tmp_path / "harm")], object), allow_pickle=True)
    assert len(list(_read(tmp_path / "hard", SPEC, 0.0, None))) == whole - 2
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("width", [63, 65])
def test_a_first_data_set_of_another_shape_is_no_reminder(data: KeptData, tmp_path: Path, width: int) -> None:
    rows, labels = halves()[0]
    other = np.zeros((len(rows), width), np.float32)
    other[:, : min(width, 64)] = rows[:, :width]
    reference = read_data(write(tmp_path / "first.npz", other, labels), SPEC)
    assert with_replay(data.node, reference) is data.node
    assert with_replay(data.node, None) is data.node
