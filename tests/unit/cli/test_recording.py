"""A recording on disk: whole whatever happens, and the same frames again when it is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede import codec, topics
from halimede.cli import recording
from halimede.cli.commands import replay
from halimede.cli.commands.replay import ReplayPlan
from halimede.contract.examples import PNG
from halimede.errors import DecodeError, HalimedeError
from halimede.messages import Frame

RAW = Frame(
    id=bytes(range(16)), camera="cam0", sequence=7, encoding="raw", dtype="uint8", shape=[2, 3],
    data=memoryview(b"abcdef"),
)  # fmt: skip


def recorded(folder: Path, *payloads: bytes) -> Path:
    with recording.create(folder) as made:
        for i, payload in enumerate(payloads):
            made.add(payload, i * 100.0)
    return folder


def test_what_was_recorded_is_played_as_it_was_with_a_new_id(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", codec.encode(topics.REQUEST, RAW), PNG)
    raw, bare = recording.load(folder)
    assert (raw.sequence, raw.id, raw.shape, raw.offset_ms) == (7, RAW.id.hex(), (2, 3), 0.0)
    assert (folder / bare.file).read_bytes() == PNG
    assert recording.payload(folder, bare, "cam1", 0) == PNG
    again = codec.decode(topics.REQUEST, recording.payload(folder, raw, "cam1", 3))
    assert (again.camera, again.sequence, again.dtype, again.shape) == ("cam1", 3, "uint8", [2, 3])
    assert bytes(again.data) == b"abcdef"
    assert again.id != RAW.id


def test_no_recording_is_overwritten(tmp_path: Path) -> None:
    recorded(tmp_path / "a", PNG)
    with pytest.raises(HalimedeError, match="it is not empty"), recording.create(tmp_path / "a"):
        pass


def test_what_is_no_frame_is_not_kept(tmp_path: Path) -> None:
    with recording.create(tmp_path / "a") as made:
        for payload in (b"", b"hello"):
            with pytest.raises(DecodeError):
                made.add(payload, 0.0)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["index.jsonl"]


def test_a_line_that_was_cut_off_is_left_out_and_a_bad_one_is_named(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", PNG, PNG)
    index = folder / "index.jsonl"
    whole = index.read_bytes()
    index.write_bytes(whole[:-20])
    assert len(recording.load(folder)) == 1
    index.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(HalimedeError, match="line 1"):
        recording.load(folder)
    index.write_bytes(b'{"file":"../x","offset_ms":0,"size":1,"encoding":"png"}\n')
    with pytest.raises(HalimedeError, match="a file of this folder or a time is missing"):
        recording.load(folder)


def offsets(folder: Path, **how: float) -> list[float]:
    reel = replay.load(folder, ReplayPlan(str(folder), "cam0", "default", **how))  # type: ignore[arg-type]
    return [round(entry.offset_ms, 3) for entry in reel.entries]


def test_times_are_those_of_the_recording_or_as_wanted(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", PNG, PNG, PNG)
    assert offsets(folder) == [0.0, 100.0, 200.0]
    assert offsets(folder, speed=4.0) == [0.0, 25.0, 50.0]
    assert offsets(folder, fps=10.0) == [0.0, 100.0, 200.0]
    reel = replay.load(folder, ReplayPlan(str(folder), "cam0", "default"))
    assert replay.length_ms(reel.entries) == 300.0


def test_a_plain_folder_of_pictures_is_played_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        (tmp_path / name).write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("no picture")
    reel = replay.load(tmp_path, ReplayPlan(str(tmp_path), "cam0", "default", fps=5.0))
    assert [(entry.file, entry.offset_ms) for entry in reel.entries] == [("a.png", 0.0), ("b.png", 200.0)]
    assert offsets(tmp_path) == [0.0, 40.0]
    with pytest.raises(HalimedeError, match="no such folder"):
        replay.load(tmp_path / "absent", ReplayPlan("x", "cam0", "default"))
