"""Kept samples of a small store: which are read, how many a training set has, and what their counts stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.frames import new_frame
from halimede.hard_samples.stream_counts import StreamCounts
from halimede.learning_loop.sampling import is_held_out
from halimede.messages import Prediction
from halimede.training import kept_data
from halimede.training.data import NodeData, TrainingDataError
from halimede.training.kept_data import (
    GROUP_NS,
    HELD_OUT,
    REPLAY,
    _period,
    _read,
    is_kept,
    read_kept,
    with_replay,
)
from halimede.training.trainer import TrainingData
from tests.kept_samples import SHARE, KeptStore

LABELS = ["a", "b"]
SPEC = ModelSpec(
    url="/", format="onnx", labels=LABELS, postprocess=Postprocess(task="classification", output="probabilities")
)
#: when the first sample is kept, and how far apart samples are: one in each group
FIRST_NS, STEP_NS = 10**18, GROUP_NS
SIZE = 8


def store(
    folder: Path, count: int, *, step_ns: int = STEP_NS, size: int = SIZE, first_ns: int = FIRST_NS, **changes: Any
) -> None:
    """Store samples of two classes that the next tier answered surely."""
    kept_store = KeptStore(folder)
    for i in range(count):
        label, now_ns = LABELS[i % 2], first_ns + i * step_ns
        answer = Prediction(label=label, score=1.0, probabilities=[1.0, 0.0] if label == "a" else [0.0, 1.0])
        kept_store.add(new_frame(np.full(size, i, np.float32), camera="cam"), answer, now_ns, **changes)
        kept_store.stream.observe("v1", SHARE, now_ns / 1e9, hard=not changes.get("audit"))
    kept_store.stream.save()


def reason_of(folder: Path, **limits: Any) -> str:
    with pytest.raises(TrainingDataError) as caught:
        read_kept(folder, SPEC, **limits)
    return caught.value.reason


def entries(folder: Path, since_s: float = 0.0) -> list[Any]:
    return list(_read(folder, SPEC, since_s, None))


def node(train: int, held: int = 0, width: int = SIZE, first: int = 0) -> NodeData:
    def samples(count: int) -> TrainingData:
        rows = np.arange(first, first + count, dtype=np.float32)[:, None] + np.zeros(width, np.float32)
        return TrainingData(rows, np.arange(count) % 2, 2)

    return NodeData(samples(train), samples(held))


def test_a_training_set_repeats_few_samples_by_weight_to_two_thousand(tmp_path: Path) -> None:
    store(tmp_path, 40)
    data = read_kept(tmp_path, SPEC)
    assert len(data.node.train) == 2000
    assert data.node.train.classes == data.node.held_out.classes == 2
    assert len(data.node.held_out) == len(data.judged) == len(data.unseen)
    assert {row.sum() for row in data.node.train.samples}.isdisjoint(row.sum() for row in data.node.held_out.samples)


def test_a_training_set_has_twice_as_many_samples_as_there_are_different_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, 40)
    monkeypatch.setattr(kept_data, "LEAST_SIZE", 70)
    assert len(read_kept(tmp_path, SPEC).node.train) == 80
    monkeypatch.setattr(kept_data, "MOST_SIZE", 60)
    assert len(read_kept(tmp_path, SPEC).node.train) == 60


def test_a_training_set_is_no_larger_than_the_memory_for_it(tmp_path: Path) -> None:
    store(tmp_path, 40)
    read = entries(tmp_path)
    size = sum(entry.pixels.nbytes + (entry.image.nbytes if entry.image is not None else 0) for entry in read)
    data = read_kept(tmp_path, SPEC, most_bytes=size)
    assert len(data.node.train) == size // (4 * SIZE)
    assert len(data.unseen) == len(read_kept(tmp_path, SPEC).unseen), "they just fit"
    fewer = read_kept(tmp_path, SPEC, most_bytes=size - 1)
    assert len(fewer.node.train) == (size - 1) // (4 * SIZE)


def test_two_samples_to_train_on_are_enough_and_one_is_too_few(tmp_path: Path) -> None:
    # two neighbouring groups, neither of which is held out
    first_ns = next(
        now_ns
        for now_ns in range(FIRST_NS, FIRST_NS + 100 * GROUP_NS, GROUP_NS)
        if not any(is_held_out(f"cam/{(now_ns + more) // GROUP_NS}", HELD_OUT) for more in (0, GROUP_NS))
    )
    store(tmp_path / "one", 1, first_ns=first_ns)
    assert reason_of(tmp_path / "one") == "DatasetEmpty"
    store(tmp_path / "two", 2, first_ns=first_ns)
    data = read_kept(tmp_path / "two", SPEC)
    assert (len(data.node.train), len(data.node.held_out), data.judged) == (2000, 0, [])
    assert data.node.held_out.samples.shape == (0, SIZE)


def test_a_sample_counts_from_the_very_instant_on(tmp_path: Path) -> None:
    store(tmp_path, 10)
    fifth_s = (FIRST_NS + 5 * STEP_NS) / 1e9
    assert len(entries(tmp_path, fifth_s)) == 5
    assert len(entries(tmp_path, fifth_s + 0.5)) == 4


def test_samples_of_one_camera_within_ten_seconds_are_one_group(tmp_path: Path) -> None:
    store(tmp_path, 40, step_ns=10**9)
    groups = [entry.facts.group for entry in entries(tmp_path)]
    assert len(set(groups)) == 4
    assert {groups.count(group) for group in groups} == {10}
    assert all(group.startswith("cam/") for group in groups)
    assert all((entry.image is not None) == is_held_out(entry.facts.group, HELD_OUT) for entry in entries(tmp_path))


@pytest.mark.parametrize(("audit", "stratum"), [(True, "easy"), (False, "hard")])
def test_audited_samples_are_the_easy_stratum_of_their_time(tmp_path: Path, audit: bool, stratum: str) -> None:
    store(tmp_path, 10, audit=audit)
    samples = [entry.facts for entry in entries(tmp_path)]
    assert {(sample.stratum, sample.period) for sample in samples} == {(stratum, "v1 0.25")}
    assert [entry.facts.label for entry in entries(tmp_path)] == [LABELS[1 - i % 2] for i in range(10)]


def test_counts_of_a_stream_are_kept_by_period_and_stratum(tmp_path: Path) -> None:
    store(tmp_path, 40)
    counts = StreamCounts(tmp_path)
    for i in range(30):
        counts.observe("v1", 0.5, FIRST_NS / 1e9 + i, hard=i % 3 == 0)
    counts.save()
    assert dict(read_kept(tmp_path, SPEC).stream) == {
        ("v1 0.25", "hard"): 40, ("v1 0.25", "easy"): 0, ("v1 0.5", "hard"): 10, ("v1 0.5", "easy"): 20,
    }  # fmt: skip


def test_shares_of_audits_that_differ_by_less_than_a_millionth_are_one_period() -> None:
    assert _period("v1", 0.1 + 0.2) == _period("v1", 0.3) == "v1 0.3"
    assert _period("v1", 0.1234567) == "v1 0.123457"


def test_answers_of_the_small_model_are_no_labels(tmp_path: Path) -> None:
    store(tmp_path, 20, by="edge")
    assert {(entry.cloud, entry.settled.label) for entry in entries(tmp_path)} == {(None, None)}
    assert reason_of(tmp_path) == "DatasetEmpty"


def test_samples_of_the_most_frequent_shape_are_used(tmp_path: Path) -> None:
    store(tmp_path, 40)
    store(tmp_path, 10, size=2 * SIZE, first_ns=FIRST_NS + 10**15)
    assert read_kept(tmp_path, SPEC).node.train.samples.shape[1:] == (SIZE,)


def test_a_model_without_classes_is_not_trained_on_kept_samples(tmp_path: Path) -> None:
    store(tmp_path, 10)
    with pytest.raises(TrainingDataError, match="list its classes") as caught:
        read_kept(tmp_path, ModelSpec(url="/", format="onnx", labels=[]))
    assert caught.value.reason == "DatasetInvalid"


@pytest.mark.parametrize("most_bytes", [4 * SIZE, 0])
def test_too_little_memory_is_named_as_the_reason(tmp_path: Path, most_bytes: int) -> None:
    store(tmp_path, 40)
    with pytest.raises(TrainingDataError, match="raise memoryMb") as caught:
        read_kept(tmp_path, SPEC, most_bytes=most_bytes)
    assert caught.value.reason == "OutOfMemory"


def test_a_folder_with_counts_or_with_samples_is_a_store_and_a_data_set_is_none(tmp_path: Path) -> None:
    store(tmp_path / "both", 1)
    store(tmp_path / "samples", 1)
    (tmp_path / "samples" / "stream.jsonl").unlink()
    (tmp_path / "counts").mkdir()
    (tmp_path / "counts" / "stream.jsonl").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "data set" / "3").mkdir(parents=True)
    (tmp_path / "data set" / "3" / "a.png").touch()
    (tmp_path / "data set" / "annotations.json").write_text("{}")
    stores = {path.name for path in tmp_path.iterdir() if is_kept(path)}
    assert stores == {"both", "samples", "counts"}
    assert not is_kept(tmp_path / "missing")


@pytest.mark.parametrize("first", [3, 1000])
def test_three_tenths_of_a_training_set_are_reminders_drawn_without_need_to_repeat(first: int) -> None:
    both = with_replay(node(700, 5), node(first, 9, first=10_000))
    assert REPLAY == 0.3
    assert (len(both.train), len(both.held_out)) == (1000, 5)
    reminders = both.train.samples[700:, 0]
    assert (reminders >= 10_000).all()
    assert len(set(reminders.tolist())) == min(first, 300)
    assert both.train.labels[700:].tolist() == [int(value) % 2 for value in reminders]
    assert both.train.classes == 2
    exact = with_replay(node(700), node(300, first=10_000))
    assert len(set(exact.train.samples[700:, 0].tolist())) == 300
