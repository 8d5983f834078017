"""A node's samples are read with the classes and pre-processing of the Model, and held out by their content."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from halimede.api.model import ModelSpec
from halimede.api.processing import Layout, Normalize
from halimede.training.data import RECENT_NS, SampleCache, TrainingDataError, newest_ns, read_data, split

SPEC = ModelSpec(url="file:///m.onnx", format="onnx", labels=["cat", "dog"])
FLAT = msgspec.structs.replace(SPEC, preprocess=[Normalize(), Layout(order="flat")])


def npz(path: Path, samples: np.ndarray, classes: list[str]) -> Path:
    np.savez(path / "data.npz", x=samples, y=np.array(classes, str))
    return path / "data.npz"


def pictures(folder: Path, grows: int = 0) -> None:
    """Write 20 pictures, each this much wider than the one before."""
    for number, name in enumerate(["cat", "dog"] * 10):
        (folder / name).mkdir(exist_ok=True)
        Image.new("L", (4 + grows * number, 4), number).save(folder / name / f"{number}.png")


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def test_pictures_of_class_folders_pass_through_the_models_preprocessing(tmp_path: Path) -> None:
    pictures(tmp_path)
    data = read_data(tmp_path, FLAT)
    assert data.train.samples.shape[1:] == (16,)
    assert data.train.samples.max() < 0.1
    assert len(data.train) + len(data.held_out) == 20
    assert set(data.train.labels) == {0, 1}


def test_files_that_come_after_the_begin_of_a_round_are_for_the_next_one(tmp_path: Path) -> None:
    pictures(tmp_path)
    began_ns, samples = newest_ns(tmp_path), SampleCache()
    time.sleep(0.05)  # clocks of files are coarse
    for number in range(5):
        Image.new("L", (4, 4), 100 + number).save(tmp_path / "cat" / f"later-{number}.png")
    for _ in range(2):
        data = samples.read(tmp_path, FLAT, began_ns)
        assert len(data.train) + len(data.held_out) == 20
    data = samples.read(tmp_path, FLAT, newest_ns(tmp_path))
    assert len(data.train) + len(data.held_out) == 25


@pytest.mark.parametrize(("age_ns", "again"), [(RECENT_NS, False), (RECENT_NS - 1, True)])
def test_samples_are_read_again_while_a_change_would_not_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_ns: int, again: bool
) -> None:
    path, samples = npz(tmp_path, rows(20), ["cat", "dog"] * 10), SampleCache()
    monkeypatch.setattr("halimede.training.data.time.time_ns", lambda: path.stat().st_ctime_ns + age_ns)
    first = samples.read(path, SPEC)
    assert (samples.read(path, SPEC) is not first) is again


def test_files_whose_time_is_to_come_belong_to_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("")
    monkeypatch.setattr("halimede.training.data.time.time_ns", lambda: 0)
    assert newest_ns(tmp_path) == (tmp_path / "a").stat().st_ctime_ns


def test_a_fifth_of_the_samples_is_held_out() -> None:
    data = split(rows(4000), np.arange(4000) % 2, 2)
    assert len(data.held_out) == pytest.approx(800, abs=60)


def test_a_sample_is_held_out_whatever_its_position_and_company() -> None:
    samples, labels = rows(200), np.arange(200) % 2
    first = split(samples, labels, 2)
    order = np.random.default_rng(1).permutation(200)[:120]
    second = split(samples[order], labels[order], 2)
    out = {sample.tobytes() for sample in first.held_out.samples}
    assert 0.1 < len(out) / 200 < 0.3
    assert {s.tobytes() for s in second.held_out.samples} == {s.tobytes() for s in samples[order]} & out


@pytest.mark.parametrize(
    ("samples", "classes", "reason", "text"),
    [
        (rows(0), [], "DatasetEmpty", "no sample"),
        (rows(1), ["cat"], "DatasetEmpty", "2 are needed"),
        (rows(30), ["cat"] * 30, "DatasetOneClass", "one class"),
        (rows(30), ["cat", "dog", "bird"] * 10, "DatasetInvalid", "'bird'"),
        (np.array([object()] * 4), ["cat", "dog"] * 2, "DatasetInvalid", ""),
    ],
    ids=["empty", "one sample", "one class", "unknown class", "pickles"],
)
def test_samples_that_cannot_be_trained_on_have_a_reason(
    tmp_path: Path, samples: np.ndarray, classes: list[str], reason: str, text: str
) -> None:
    with pytest.raises(TrainingDataError) as caught:
        read_data(npz(tmp_path, samples, classes), SPEC)
    assert caught.value.reason == reason
    assert text in str(caught.value)


def test_a_model_without_classes_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match=r"spec\.labels of the Model is empty"):
        read_data(npz(tmp_path, rows(4), ["cat", "dog"] * 2), ModelSpec(url="file:///m.onnx", format="onnx"))


def test_pictures_of_several_sizes_need_a_resize(tmp_path: Path) -> None:
    pictures(tmp_path, grows=1)
    with pytest.raises(TrainingDataError, match="several shapes: add a resize"):
        read_data(tmp_path, SPEC)
