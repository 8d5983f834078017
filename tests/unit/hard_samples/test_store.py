"""The folder of hard samples: bounds that always hold, and a folder that can be read wherever its writer ended."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import TooLargeError
from halimede.hard_samples.store import DISK_BLOCK, HardSampleStore
from halimede.messages import KeptRequest, PersonLabel
from halimede.messages.hard_samples import MOST_LABELS
from halimede.system.files import write_atomic
from tests.properties import examples
from tests.unit.hard_samples.samples import sample

ROOM = 12 * DISK_BLOCK
SAMPLES = 4


class CrashError(BaseException):
    """The process ends here."""


def store(folder: Path, room: int = ROOM, samples: int = SAMPLES) -> HardSampleStore:
    return HardSampleStore(folder / "hard", room, samples)


def holding(folder: Path, *numbers: int, **bounds: int) -> HardSampleStore:
    kept = store(folder, **bounds)
    for number in numbers:
        kept.add(sample(number), b"picture")
    return kept


def ids(kept: HardSampleStore, **wanted: Any) -> list[int]:
    return [int(entry.id, 16) for entry in kept.page(KeptRequest(**wanted)).entries]


def on_disk(folder: Path) -> tuple[int, int]:
    """Return the room that all files take, and the samples among them."""
    files = list((folder / "hard").iterdir())
    room = sum(-(-file.stat().st_size // DISK_BLOCK) * DISK_BLOCK for file in files)
    return room, sum(file.suffix == ".json" for file in files)


@contextmanager
def crash(after: int) -> Iterator[None]:
    """End the process at the file operation of that number, before or after it is done by turns."""
    left = after
    real: dict[str, Callable[..., Any]] = {name: getattr(Path, name) for name in ("replace", "unlink")}

    def spoiled(name: str) -> Callable[..., Any]:
        def call(path: Path, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise CrashError
            return real[name](path, *args, **kwargs)

        return call

    def half_written(path: Path, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            path.with_name(f".{path.name}.new").write_bytes(data[: len(data) // 2])
            raise CrashError
        write_atomic(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("halimede.hard_samples.store.write_atomic", half_written)
        for name in real:
            patch.setattr(Path, name, spoiled(name))
        yield


def test_what_is_kept_is_there_after_a_restart_the_newest_first(tmp_path: Path) -> None:
    kept, again = holding(tmp_path, 1, 2, 3), store(tmp_path)
    assert ids(again) == [3, 2, 1]
    assert again.bytes == kept.bytes == on_disk(tmp_path)[0]
    said, data = again.get(f"{2:032x}")
    assert data == b"picture"
    assert (said.result.by, said.result.label, said.edge_digest) == ("cloud", "5", "d" * 64)
    assert (said.edge.label, said.edge.embeddings) == ("3", None)  # features are left out
    again.add(sample(4), b"picture")
    assert ids(again) == [4, 3, 2, 1]


def test_the_oldest_make_room(tmp_path: Path) -> None:
    kept = holding(tmp_path, *range(1, 8))
    assert ids(kept) == [7, 6, 5, 4]
    kept.add(sample(9), b"x" * 7 * DISK_BLOCK)
    assert ids(kept) == [9, 7, 6]
    assert kept.get(f"{5:032x}") is None


def test_a_sample_that_comes_again_is_kept_once(tmp_path: Path) -> None:
    assert ids(holding(tmp_path, 1, 2, 1)) == ids(store(tmp_path)) == [1, 2]


def test_what_never_fits_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    kept = holding(tmp_path, 1)
    with pytest.raises(TooLargeError, match="too large to be kept"):
        kept.add(sample(2), b"x" * ROOM)
    assert ids(kept) == [1]


def test_smaller_bounds_hold_from_the_next_start(tmp_path: Path) -> None:
    holding(tmp_path, 1, 2, 3, 4)
    assert ids(store(tmp_path, samples=2)) == [4, 3]


def test_samples_that_fit_are_found_page_by_page(tmp_path: Path) -> None:
    kept = store(tmp_path, room=1000 * DISK_BLOCK, samples=100)
    for number in range(1, 11):
        kept.add(sample(number, by="edge" if number % 2 else "cloud"), b"picture")
    first = kept.page(KeptRequest(by="cloud", limit=3))
    second = kept.page(KeptRequest(by="cloud", limit=3, before=first.next))
    assert [[int(entry.id, 16) for entry in page.entries] for page in (first, second)] == [[10, 8, 6], [4, 2]]
    assert second.next == 0
    entry = kept.page(KeptRequest(limit=1)).entries[0]
    assert (entry.edge_label, entry.label, entry.by, entry.camera, entry.image.width) == ("3", "5", "cloud", "cam0", 8)


@pytest.mark.parametrize("kind", ["png", "json"])
def test_a_damaged_sample_goes_when_it_is_read(tmp_path: Path, kind: str) -> None:
    holding(tmp_path, 1, 2)
    assert (tmp_path / "hard").stat().st_mode & 0o777 == 0o700
    (file,) = (tmp_path / "hard").glob(f"*1.{kind}")
    file.write_bytes(b"")  # as a power failure leaves it
    again = store(tmp_path)
    assert (again.get(f"{1:032x}"), ids(again)) == (None, [2])
    assert on_disk(tmp_path) == (again.bytes, 1)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    holding(tmp_path, 1)
    (tmp_path / "hard" / "README").write_text("mine")
    (tmp_path / "hard" / f"{7:012d}-{7:032x}.json").symlink_to("/etc/passwd")
    assert ids(store(tmp_path)) == [1]
    assert (tmp_path / "hard" / "README").exists()


@pytest.mark.parametrize("failing", [1, 2])
def test_after_a_disk_error_the_folder_is_reread(tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = holding(tmp_path, 1)
    calls, replace = [0], Path.replace

    def full(path: Path, target: Path) -> Path:
        calls[0] += 1
        if calls[0] == failing:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            kept.add(sample(2), b"picture")
        assert ids(kept) == [1]
    assert (kept.added, f"{2:032x}" in kept) == (1, False)
    # a picture whose document could not be written does not stay, and its room is not counted
    assert ids(kept) == [1]
    assert on_disk(tmp_path) == (kept.bytes, 1)
    assert len(list((tmp_path / "hard").iterdir())) == 2
    kept.add(sample(2), b"picture")
    assert ids(kept) == [2, 1]
    assert on_disk(tmp_path) == (kept.bytes, 2)


@pytest.mark.parametrize("absent", ["png", "json"])
def test_a_document_without_its_picture_is_no_sample_nor_the_reverse(tmp_path: Path, absent: str) -> None:
    holding(tmp_path, 1, 2)
    (file,) = (tmp_path / "hard").glob(f"*1.{absent}")
    file.unlink()
    again = store(tmp_path)
    again.open()
    assert (len(again), ids(again)) == (1, [2])
    assert on_disk(tmp_path) == (again.bytes, 1)
    assert len(list((tmp_path / "hard").iterdir())) == 2
    # where the process that has read the folder goes on, it is found when it is read
    (file,) = (tmp_path / "hard").glob("*2.png")
    file.unlink()
    assert again.get(f"{2:032x}") is None
    again.add(sample(3), b"picture")
    assert ids(store(tmp_path)) == [3]


steps = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 11 * DISK_BLOCK)), min_size=1, max_size=12)


@given(steps=steps)
def test_the_bounds_hold_after_every_sample(steps: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        kept = store(Path(name))
        for number, size in steps:
            data = bytes(size)
            try:
                kept.add(sample(number, data), data)
            except TooLargeError:
                continue
            room, samples = on_disk(Path(name))
            assert (room, samples) == (kept.bytes, len(kept))
            assert room <= ROOM
            assert samples <= SAMPLES
            assert ids(kept)[0] == number


@examples(60)
@given(steps=steps, crashes=st.lists(st.integers(1, 25), max_size=3))
def test_an_end_at_any_point_leaves_a_store_that_can_be_read(steps: list[tuple[int, int]], crashes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hard").mkdir()
        done: dict[int, bytes] = {}
        for after in [*crashes, 10**9]:
            with crash(after):
                kept = store(folder)
                try:
                    for number, size in steps:
                        data = os.urandom(16) + bytes(size)
                        done.pop(number, None)
                        try:
                            kept.add(sample(number, data), data)
                        except TooLargeError:
                            continue
                        done[number] = data
                except CrashError:
                    pass
            room, samples = on_disk(folder)
            assert room <= ROOM
            assert samples <= SAMPLES
            again = store(folder)
            for number in ids(again):
                found = again.get(f"{number:032x}")
                assert found is not None
                assert number not in done or found[1] == done[number]
            assert on_disk(folder) == (again.bytes, len(again))


def test_a_persons_label_is_stored_with_the_sample_and_replaces_that_persons_earlier_one(tmp_path: Path) -> None:
    kept, id_ = holding(tmp_path, 1), f"{1:032x}"
    for label, by in (("3", "anna"), ("7", "ben"), ("5", "anna")):
        assert kept.label(id_, PersonLabel(label=label, by=by))
    kept_sample, data = store(tmp_path).get(id_)
    assert [(each.label, each.by) for each in kept_sample.labels] == [("7", "ben"), ("5", "anna")]
    assert data == b"picture"


def test_a_sample_that_is_gone_or_damaged_gets_no_label(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.label(f"{1:032x}", PersonLabel(label="3", by="anna")) is None
    kept.add(sample(1), b"picture")
    next((tmp_path / "hard").glob("*.json")).write_text("{")
    assert kept.label(f"{1:032x}", PersonLabel(label="3", by="anna")) is None


def test_labels_of_many_persons_are_bounded_and_the_disk_space_is_counted(tmp_path: Path) -> None:
    kept = holding(tmp_path, 1, 2)
    for number in range(MOST_LABELS):
        assert kept.label(f"{2:032x}", PersonLabel(label="x" * 1024, by=f"person {number}"))
    assert kept.bytes == on_disk(tmp_path)[0]
    with pytest.raises(TooLargeError, match="16 persons"):
        kept.label(f"{2:032x}", PersonLabel(label="3", by="another"))
    assert kept.bytes <= ROOM
