"""The name of a picture's file: it travels with the frame, and a hostile one is one cell wherever it is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halimede import codec, topics
from halimede.cli import images
from halimede.cli.commands import results
from halimede.cli.commands.hard import COLUMNS, row_of
from halimede.cli.commands.trace import Waterfall, WaterfallRow, waterfall
from halimede.cli.output import clean_cell, console, table
from halimede.contract.examples import EXAMPLES, PNG
from halimede.errors import DecodeError
from halimede.frames import new_id, open_payload, pack
from halimede.messages import Frame, KeptReply, Prediction, Result
from halimede.names import file_name

HOSTILE = [
    "two\nlines\r.jpg", "\x1b[31mred\x1b]0;title\x07.jpg", "<img src=x onerror=alert(1)>.jpg", "\u202egpj.exe",
    "\x9b31m.jpg", "w" * 255, "\u20ac" * 85,
]  # fmt: skip


def result_of(name: str) -> Result:
    prediction = Prediction(label="5")
    return Result(id="0" * 32, service="s", file=name, by="edge", worker="w", prediction=prediction, label="5")


def framed(name: str) -> bytes:
    return pack(Frame(id=new_id(), camera="cam0", file=name, encoding="png", data=memoryview(PNG)))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.jpg", "a.jpg"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("pictures/..", ""),
        ("pictures/", ""),
        (os.fsdecode(b"caf\xe9.jpg"), "caf?.jpg"),
        ("x" * 300, "x" * 255),
        ("\u20ac" * 100, "\u20ac" * 85),
        ("x" + "\u20ac" * 100, "x" + "\u20ac" * 84),
        *((name, name) for name in HOSTILE if "/" not in name),
    ],
)
def test_a_name_has_no_folder_and_at_most_255_bytes_of_whole_characters(path: str, name: str) -> None:
    assert file_name(path) == name
    assert len(name.encode()) <= 255


def test_publish_sends_the_name_of_the_file_and_a_bare_picture_has_none(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9\n.png")
    path.write_bytes(PNG)
    (picture,), _ = images.find([str(tmp_path)])
    sent = images.payload(picture, "cam0", 3, new_id(), bare=False)
    assert open_payload(sent, "cam0").file == "caf?\n.png"
    assert open_payload(images.payload(picture, "cam0", 3, new_id(), bare=True), "cam0").file == ""
    assert len(sent) - len(PNG) <= images.FRAME_BYTES


def test_the_longest_name_fits_into_what_is_reserved_for_the_fields_of_a_frame() -> None:
    names = {"camera": "c" * 63, "file": "\u20ac" * 85}
    frame = Frame(id=new_id(), sequence=2**63 - 1, encoding="jpeg", data=memoryview(PNG), **names)
    assert len(pack(frame)) - len(PNG) <= images.FRAME_BYTES


def test_a_worker_leaves_out_the_folders_of_a_camera_and_refuses_what_is_no_name() -> None:
    assert open_payload(framed("../../etc/pass\nwd"), "cam0").file == "pass\nwd"
    assert open_payload(framed("x" * 300), "cam0").file == "x" * 255
    with pytest.raises(DecodeError, match=r"\$.file"):
        open_payload(framed("x" * 5000), "cam0")
    with pytest.raises(DecodeError):
        open_payload(framed("caf#").replace(b"caf#", b"caf\xe9"), "cam0")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_cell_of_results_of_hard_samples_and_of_a_trace(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    again = codec.decode(topics.RESULT, codec.encode(topics.RESULT, result_of(name)))
    assert again.file == name
    reply = codec.decode(topics.KEPT_REPLY, codec.encode(topics.KEPT_REPLY, EXAMPLES[topics.KEPT_REPLY.id]))
    assert isinstance(reply, KeptReply)
    reply.entries[0].image.file = name
    row = WaterfallRow("w", "n", "edge", "receive", 0.0, 1.0, {"camera": "cam0", "file": name})
    out = console()
    out.print(results.line(again))
    out.print(table(COLUMNS, [row_of(reply, reply.entries[0])]))
    out.print(waterfall(Waterfall([row], [])))
    shown = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in shown)
    lines = shown.splitlines()
    assert len(lines) == 1 + 2 + 2  # each is one line below its header
    assert all(clean_cell(name)[:60] in line for line in (lines[0], lines[2], lines[4]))


def test_a_peer_without_names_is_understood_and_understands() -> None:
    old = b'{"id":"' + b"0" * 32 + b'","service":"s","by":"edge","prediction":{},"worker":"w"}'
    assert codec.decode(topics.RESULT, old).file == ""
    assert codec.encode(topics.RESULT, codec.decode(topics.RESULT, old)) == old
