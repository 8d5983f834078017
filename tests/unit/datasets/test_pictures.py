"""Image folders and Pascal VOC: broken files are named with the reason, and hostile XML reaches nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halimede.datasets import DatasetError
from tests.hostile_pictures import jpeg, png
from tests.unit.datasets.counted import broken, classes, facts

JPEG = b"\xff\xd8\xff\xe0" + bytes(100) + b"\xff\xd9"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(50) + b"IEND\xaeB`\x82"


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_picture_is_a_sample_of_the_folder_that_it_is_in(tmp_path: Path) -> None:
    for name in ("train/cat/1.jpg", "train/cat/deep/2.JPG", "val/dog/3.jpeg", "cat/4.jpg", "5.jpg"):
        put(tmp_path / name, JPEG)
    put(tmp_path / "dog/6.png", PNG)
    put(tmp_path / "dog/notes.txt", b"no picture")
    put(tmp_path / ".cache/7.jpg", JPEG)
    said = facts(tmp_path, "images")
    assert (said.number_of_samples, classes(said)) == (6, {"cat": 3, "dog": 2})
    assert said.size == 5 * len(JPEG) + len(PNG)


def test_a_picture_with_padding_or_a_film_behind_it_is_whole(tmp_path: Path) -> None:
    """Motion photos (3rd/image.nvim#379): what follows a picture is no fault of it; a film alone is no end."""
    whole, film = jpeg(64, 64), b"ftypmp42" + bytes(9000)
    put(tmp_path / "cat/padded.jpg", whole + bytes(9000))
    put(tmp_path / "cat/motion.jpg", whole + film)
    put(tmp_path / "cat/trailing.png", png(8, 8) + bytes(9000))
    put(tmp_path / "cat/half.jpg", whole[:-2] + film)
    said = facts(tmp_path, "images")
    assert (said.number_of_samples, broken(said)) == (3, {"cat/half.jpg": "cut off: its end is missing"})


def test_pictures_that_are_empty_cut_off_or_none_are_named(tmp_path: Path) -> None:
    put(tmp_path / "cat/good.jpg", PNG)  # another format's ending is no harm
    put(tmp_path / "cat/empty.jpg", b"")
    put(tmp_path / "cat/text.png", b"hello, this is text")
    put(tmp_path / "cat/half.jpg", JPEG[:-2])
    put(tmp_path / "cat/half.png", PNG[:-8])
    (tmp_path / "cat/gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "cat/pipe.jpg")
    said = facts(tmp_path, "image-folder")
    assert (said.number_of_samples, classes(said), said.number_broken) == (1, {"cat": 1}, 6)
    assert broken(said) == {
        "cat/empty.jpg": "an empty file",
        "cat/text.png": "no picture: it does not begin as a png file does",
        "cat/half.jpg": "cut off: its end is missing",
        "cat/half.png": "cut off: its end is missing",
        "cat/gone.jpg": "it cannot be read: No such file or directory",
        "cat/pipe.jpg": "it is not a regular file",
    }


def test_a_folder_without_any_picture_is_no_dataset(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"x")
    with pytest.raises(DatasetError, match=r"has no file that ends with .*\.jpg") as raised:
        facts(tmp_path, "images")
    assert raised.value.reason == "DatasetUnreadable"


def box(name: str, *sides: object) -> str:
    inner = "".join(f"<{n}>{v}</{n}>" for n, v in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=False))
    return f"<object><name>{name}</name><part><name>head</name></part><bndbox>{inner}</bndbox></object>"


def annotation(*objects: str, picture: str = "1.jpg") -> bytes:
    size = "<size><width>100</width><height>50</height><depth>3</depth></size>"
    return f"<annotation><filename>{picture}</filename>{size}{''.join(objects)}</annotation>".encode()


def test_voc_counts_files_as_samples_and_objects_by_class(tmp_path: Path) -> None:
    put(tmp_path / "Annotations/1.xml", annotation(box("helmet", 1, 1, 20, 20), box("person", 5, 5, 9, 9.5)))
    put(tmp_path / "Annotations/2.xml", annotation(box("person", 1, 1, 100, 50)))
    put(tmp_path / "Annotations/3.xml", annotation())
    put(tmp_path / "ImageSets/other.xml", b"no annotation")
    said = facts(tmp_path, "Pascal VOC")
    assert (said.number_of_samples, classes(said), said.number_broken) == (3, {"person": 2, "helmet": 1}, 0)


BOMB = b"""<!DOCTYPE a [<!ENTITY x "lol"><!ENTITY y "&x;&x;&x;&x;&x;&x;&x;&x;&x;&x;">]><annotation>&y;</annotation>"""
OUTSIDE = b"""<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>"""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<annotation><object>", "no XML: no element found"),
        (b"", "no XML: no element found"),
        (b"not xml", "no XML: syntax error"),
        (b"<html/>", "its root is <html>, not <annotation>"),
        (BOMB, "it declares a document type or entities, which are not read"),
        (OUTSIDE, "it declares a document type or entities, which are not read"),
        (b"<!DOCTYPE annotation><annotation/>", "it declares a document type or entities, which are not read"),
        (b'<?xml version="1.0" encoding="nonsense"?><annotation/>', "unknown encoding"),
        (b"<annotation>" * 40, "nested over 32 deep"),
        (annotation(box("", 1, 1, 2, 2)), "object 1 has no name"),
        (annotation(box("cat", 1, 1, 2)), "object 1 (cat): bndbox/ymax is missing"),
        (annotation(box("cat", 1, "a", 2, 2)), "object 1 (cat): bndbox/ymin is 'a', not a number"),
        (annotation(box("cat", 1, "nan", 2, 2)), "object 1 (cat): bndbox/ymin is 'nan', not a number"),
        (annotation(box("cat", 1, 1, 2, 2), box("dog", 9, 1, 3, 2)), "object 2 (dog): its box is empty or inverted"),
        (annotation(box("cat", 1, 1, 200, 2)), "object 1 (cat): its box 1 1 200 2 is not inside of 100 x 50"),
    ],
)  # fmt: skip
def test_voc_entries_that_cannot_be_used_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    put(tmp_path / "bad.xml", content)
    put(tmp_path / "good.xml", annotation(box("cat", 1, 1, 2, 2)))
    said = facts(tmp_path, "voc")
    assert (said.number_of_samples, classes(said)) == (1, {"cat": 1})
    assert list(broken(said)) == ["bad.xml"]
    assert reason in broken(said)["bad.xml"]


def test_a_voc_file_is_broken_until_its_picture_is_there(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    put(tmp_path / "d/Annotations/1.xml", annotation(picture="1.jpg"))
    put(tmp_path / "d/Annotations/2.xml", annotation(picture="../../../etc/passwd"))
    (tmp_path / "d/JPEGImages").mkdir()
    said = facts(tmp_path / "d", "voc", ledger)
    assert broken(said) == {
        "1.xml": "its picture JPEGImages/1.jpg does not exist",
        "2.xml": "its picture JPEGImages/passwd does not exist",
    }
    put(tmp_path / "d/JPEGImages/1.jpg", JPEG)
    assert facts(tmp_path / "d", "voc", ledger).number_of_samples == 1
