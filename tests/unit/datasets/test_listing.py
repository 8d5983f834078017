"""The list of a dataset's files: its digest changes with names and content alone, and what it names is safe."""

from __future__ import annotations

import contextlib
import hashlib
import os
import string
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.datasets import DatasetError, listing
from halimede.datasets.listing import ListedFile, Listing, index_of, read_index, read_listing, write_listing
from tests.anything import attempt

DIGEST = hashlib.sha256(b"").hexdigest()


def listed(names: list[str]) -> bytes:
    return msgspec.json.encode(Listing(files=[ListedFile(name, 0, DIGEST) for name in names]))


def told(*_: int) -> None: ...


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_all_files_of_a_folder_are_listed_with_their_digests_and_hidden_ones_are_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", a_txt="1", sub__b_jpg="2")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    digest = write_listing(folder, tmp_path / "l.listing", told)
    data = (tmp_path / "l.listing").read_bytes()
    assert digest == hashlib.sha256(data).hexdigest()
    found = read_listing(data)
    assert [(file.name, file.size) for file in found.files] == [("a.txt", 1), ("sub/b.jpg", 1)]
    assert found.files[0].digest == hashlib.sha256(b"1").hexdigest()
    assert not found.single


def test_a_dataset_of_one_file_is_that_file_and_not_its_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", train_csv="a,b", other_csv="c")
    write_listing(folder / "train.csv", tmp_path / "l.listing", told)
    found = read_listing((tmp_path / "l.listing").read_bytes())
    assert (found.single, [file.name for file in found.files]) == (True, ["train.csv"])


def test_the_digest_depends_on_content_and_names_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", a_txt="1", b_txt="2")
    first = write_listing(folder, tmp_path / "l.listing", told)
    os.utime(folder / "a.txt", (1, 1))
    assert write_listing(folder, tmp_path / "l.listing", told) == first
    (folder / "a.txt").write_text("3")
    changed = write_listing(folder, tmp_path / "l.listing", told)
    assert changed != first
    (folder / "a.txt").rename(folder / "c.txt")
    assert write_listing(folder, tmp_path / "l.listing", told) not in {first, changed}


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", a_txt="1" * 10, b_txt="2" * 20)
    write_listing(folder, tmp_path / "l.listing", told)
    read: list[int] = []
    (folder / "b.txt").write_text("3" * 30)
    write_listing(folder, tmp_path / "l.listing", lambda _files, done, _samples: read.append(done))
    assert read[-1] == 30
    index_of(tmp_path / "l.listing").write_bytes(b"\xc1 damaged")
    assert read_index(index_of(tmp_path / "l.listing")).files == {}
    write_listing(folder, tmp_path / "l.listing", lambda _files, done, _samples: read.append(done))
    assert read[-1] == 40


def test_a_link_within_the_folder_is_its_file_and_one_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", a_txt="1")
    (folder / "b.txt").symlink_to("a.txt")
    write_listing(folder, tmp_path / "l.listing", told)
    (folder / "c.txt").symlink_to("/etc/passwd")
    with pytest.raises(DatasetError, match=r"c.txt: the link leads out of the folder: replace it with the file"):
        write_listing(folder, tmp_path / "l.listing", told)


def test_what_is_no_file_and_what_has_no_utf8_name_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", a_txt="1")
    os.mkfifo(folder / "pipe")
    with pytest.raises(DatasetError, match="pipe: it is not a regular file"):
        write_listing(folder, tmp_path / "l.listing", told)
    (folder / "pipe").unlink()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt")).write_text("x")
    with pytest.raises(DatasetError, match=r"\\xff.txt: the name is not UTF-8: rename it"):
        write_listing(folder, tmp_path / "l.listing", told)


def test_a_folder_of_too_many_files_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_FILES", 3)  # 100,000 files take a minute
    folder = write(tmp_path / "set", **{f"f{n}_txt": "" for n in range(4)})
    with pytest.raises(DatasetError, match="over 3 files: pack the files into archives, or name a smaller folder"):
        write_listing(folder, tmp_path / "l.listing", told)


@pytest.mark.parametrize(
    "names",
    [["../x"], ["/etc/passwd"], ["a/../x"], ["a//b"], ["a/"], ["."], ["a\0b"], ["x" * 256], ["a", "a"], ["a", "a/b"]],
)
def test_names_that_lead_elsewhere_or_clash_are_refused(names: list[str]) -> None:
    with pytest.raises(DatasetError):
        read_listing(listed(names))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_listing_or_a_clear_error(data: bytes) -> None:
    with contextlib.suppress(DatasetError):
        read_listing(data)


@given(st.lists(st.text(string.ascii_letters + "/.\0é", min_size=1, max_size=12), max_size=6))
def test_what_is_accepted_stays_below_its_folder(names: list[str]) -> None:
    accepted, _ = attempt(read_listing, listed(names), refusal=DatasetError)
    for file in accepted.files if accepted else ():
        assert Path(os.path.normpath(f"/root/{file.name}")).is_relative_to("/root")
        assert os.path.normpath(f"/root/{file.name}") == f"/root/{file.name}"
