"""A checkpoint is either the old one or the new one, and it is never believed unread."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Struct

from halimede.api.trainingmodel import Hours
from halimede.errors import InvalidFieldError
from halimede.training.checkpoint import Checkpoint, CheckpointError
from halimede.training.settings import read_training


class Memory(Struct):
    number: int
    file: str = ""


def test_a_state_and_its_files_come_back_whatever_file_is_without_a_state(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "c", Memory)
    assert checkpoint.load() is None
    first = checkpoint.add(b"first")
    checkpoint.save(Memory(1, first), {first})
    checkpoint.add(b"of a process that was killed")
    again = Checkpoint(tmp_path / "c", Memory)
    assert again.load() == Memory(1, first)
    assert again.read(first) == b"first"


def test_the_content_of_each_file_is_on_disk_before_its_name_and_both_before_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        events.append(("sync", path.name))
        if path.name.endswith(".new"):
            assert path.stat().st_size, "nothing was written yet"
        sync(handle)

    def replaced(path: Path, target: Path) -> Path:
        events.append(("name", target.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    folder = tmp_path / "c"
    checkpoint = Checkpoint(folder, Memory)
    digest = checkpoint.add(b"tensors")
    assert events == [("sync", f".{digest}.new"), ("name", digest)]
    checkpoint.save(Memory(1, digest), {digest})
    assert events[2:] == [("sync", "c"), ("sync", ".state.json.new"), ("name", "state.json"), ("sync", "c")]


def test_files_that_the_state_does_not_name_are_removed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, Memory)
    first, second = checkpoint.add(b"first"), checkpoint.add(b"second")
    checkpoint.save(Memory(2, second), {second})
    with pytest.raises(CheckpointError):
        checkpoint.read(first)
    assert checkpoint.read(second) == b"second"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": "x"}'])
def test_a_damaged_state_is_an_error_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="Remove the folder"):
        Checkpoint(tmp_path, Memory).load()


def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, Memory)
    digest = checkpoint.add(b"weights")
    (tmp_path / digest).write_bytes(b"Weights")
    with pytest.raises(CheckpointError, match="other content"):
        checkpoint.read(digest)


@pytest.mark.parametrize(
    ("begin", "end", "hour", "inside"),
    [(0, 0, 12, True), (22, 6, 23, True), (22, 6, 5, True), (22, 6, 6, False), (8, 18, 8, True), (8, 18, 18, False)],
)
def test_hours_of_the_day_may_pass_midnight(begin: int, end: int, hour: int, inside: bool) -> None:
    assert Hours(begin=begin, end=end).contains(datetime(2026, 1, 1, hour, tzinfo=UTC)) is inside


ENVIRON = {
    "WORKER_NAME": "t0",
    "NODE_NAME": "edge0",
    "SERVICE_NAME": "job",
    "SERVICE_UID": "u-1",
    "TRAIN_DATASET_URL": "/d",
}


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ("", "TRAINING"),
        ("{", "TRAINING"),
        ('{"trainers": {}}', "TRAINING"),
        ('{"trainers": {"t0": "edge0"}, "minClients": 2}', "TRAINING.minClients"),
        ('{"trainers": {"t0": "n", "t1": "n"}, "minClients": 2, "clientsPerRound": 1}', "TRAINING.clientsPerRound"),
        ('{"trainers": {"t0": "edge1"}}', "WORKER_NAME"),
        ('{"trainers": {"t0": "edge0"}, "round": 2}', "TRAINING"),
    ],
)
def test_wrong_settings_name_their_field(training: str, field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read_training("trainer", {**ENVIRON, "TRAINING": training})
    assert caught.value.field.startswith(field)
