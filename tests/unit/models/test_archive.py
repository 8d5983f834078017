"""Archives become folders of the cache: whole at once, once, and made again when they are not what they were."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halimede.api.model_formats import ONNX, SAVED_MODEL, TFLITE, ModelFormat
from halimede.models import Cache, FetchError, FetchReason
from halimede.models.archive import (
    ArchiveLimits,
    ArchiveRefusedError,
    Unpacking,
    format_at,
    model_file,
    unpack,
    unpack_zip,
)
from tests.simulated import eventually
from tests.unit.models.archives import FILES, member, refusal, stored, tar, tar_of, tree, zip_of, zipped
from tests.waiting import patience

#: the remedy that an archive without one model of the format is told
NAMED = {ONNX: r"model\.onnx", TFLITE: r"model\.tflite", SAVED_MODEL: r"saved_model\.pb"}


MAKERS: dict[str, Callable[[], bytes]] = {
    "tar": lambda: tar(FILES, "w"),
    "tar.gz": lambda: tar(FILES),
    "zip": lambda: zipped(FILES),
    "zip, stored": lambda: zipped(FILES, zipfile.ZIP_STORED),
}


@pytest.mark.parametrize("kind", MAKERS)
async def test_an_archive_becomes_a_folder(kind: str, cache: Cache) -> None:
    fetched = stored(cache, MAKERS[kind]())
    folder = await unpack(cache, fetched)
    assert folder == cache.root / "unpacked" / fetched.digest
    assert tree(folder) == FILES
    assert model_file(folder) == folder / "model.onnx"
    assert {oct(path.stat().st_mode & 0o7777) for path in folder.rglob("*") if path.is_file()} == {"0o400"}
    assert cache.digests() == {fetched.digest: fetched.size + sum(map(len, FILES.values()))}


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar", "v7"])
async def test_tars_as_people_make_them(form: str, cache: Cache, tmp_path: Path) -> None:
    files = dict(FILES)
    if form in {"gnu", "pax"}:  # the others have short names
        files[f"{'a' * 120}/{'b' * 120}/note.txt"] = b"long"
    for name, body in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(body)
    archive = tmp_path / "model.tar.gz"
    words = ["tar", "-C", str(tmp_path / "in"), f"--format={form}", "-czf", str(archive), "."]
    await asyncio.to_thread(subprocess.run, words, check=True)
    assert tree(await unpack(cache, stored(cache, archive.read_bytes()))) == files


@pytest.mark.parametrize("content", [b"\x08\x08an ONNX model", b"", b"x" * 2000, bytes(2000)])
async def test_what_is_no_archive_stays_a_file(content: bytes, cache: Cache) -> None:
    fetched = stored(cache, content)
    assert await unpack(cache, fetched) == fetched.path
    assert model_file(fetched.path) == fetched.path
    assert not (cache.root / "unpacked").exists()


@pytest.mark.parametrize("content", [b"\x08\x08an ONNX model", b"x" * 2000, bytes(2000), bytes(3_000_000)])
async def test_a_single_compressed_file_becomes_that_file(content: bytes, cache: Cache) -> None:
    """A model that `gzip` or a server has compressed."""
    fetched = stored(cache, gzip.compress(content))
    for _ in range(2):
        model = await unpack(cache, fetched)
        assert model_file(model) == model
        assert model.read_bytes() == content
    assert model.parent == cache.root / "unpacked" / fetched.digest


async def test_a_single_compressed_file_that_is_damaged_is_refused(cache: Cache) -> None:
    whole = gzip.compress(os.urandom(9000))
    for content in (whole[:-9], whole[:-6] + b"\0\0" + whole[-4:]):
        assert (await refusal(unpack(cache, stored(cache, content))))[0] is FetchReason.BAD_ARCHIVE
        assert not list((cache.root / "unpacked").iterdir())


async def test_it_is_unpacked_once_by_many_at_a_time(cache: Cache) -> None:
    fetched = stored(cache, tar(FILES))
    folders = await asyncio.gather(*(unpack(Cache(cache.root), fetched) for _ in range(8)))
    made = {path.stat().st_ino for folder in folders for path in [folder / "model.onnx"]}
    assert len(set(folders)) == len(made) == 1
    assert (await unpack(cache, fetched) / "model.onnx").stat().st_ino in made


@pytest.mark.parametrize("harm", ["changed", "removed", "added", "link"])
async def test_a_folder_that_was_meddled_with_is_made_again(harm: str, cache: Cache) -> None:
    fetched = stored(cache, tar(FILES))
    folder = await unpack(cache, fetched)
    target = folder / "labels.txt"
    if harm == "added":
        (folder / "more.txt").write_text("more")
    else:
        target.unlink()
        if harm == "changed":
            target.write_bytes(b"dog\ncat\n")
        if harm == "link":
            target.symlink_to("/etc/passwd")
    assert tree(await unpack(cache, fetched)) == FILES
    assert not target.is_symlink()


#: unpacks an archive, and dies at once when it has written so many of its files
DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from halimede.models import Cache, Fetched
from halimede.models.archive import Unpacking, unpack

root, path, digest, size, left = sys.argv[1:]
left = int(left)
write = Unpacking.write

def count(*args):
    global left
    write(*args)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Unpacking.write = count
asyncio.run(unpack(Cache(Path(root)), Fetched(Path(path), digest, int(size))))
"""


async def test_a_process_killed_while_it_unpacks_leaves_nothing_that_is_taken_for_whole(cache: Cache) -> None:
    files = {f"{i}.bin": os.urandom(20_000) for i in range(100)} | FILES
    fetched = stored(cache, tar(files, "w"))
    words = [sys.executable, "-c", DYING, str(cache.root), str(fetched.path), fetched.digest, str(fetched.size)]
    target, new = cache.root / "unpacked" / fetched.digest, cache.root / "unpacked" / f".{fetched.digest}.new"
    for members in (1, 20, 60):
        ended = await asyncio.to_thread(subprocess.run, [*words, str(members)], timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert not target.exists()
        assert len(list(new.glob("*"))) >= members
    cache.evict([fetched.digest], 0)
    assert not new.exists()
    assert tree(await unpack(cache, fetched)) == files


async def test_cancelled_it_ends_soon_and_leaves_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = stored(cache, tar({f"{i}.bin": os.urandom(200_000) for i in range(150)}, "w"))
    written, gate, members, write = threading.Event(), threading.Event(), list[str](), Unpacking.write

    def write_and_wait(unpacking: Unpacking, path: str, body: Any, size: int | None) -> None:
        write(unpacking, path, body, size)
        members.append(path)
        written.set()
        assert gate.wait(patience(20))

    monkeypatch.setattr(Unpacking, "write", write_and_wait)
    task = asyncio.create_task(unpack(cache, fetched))
    await eventually(written.is_set, 30)
    task.cancel()
    await asyncio.sleep(0)  # it is cancelled while the first member has just been written
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(members) == 1
    assert list((cache.root / "unpacked").iterdir()) == []


def make_files(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("form", "names", "wanted"),
    [
        (ONNX, ["a/b/net.onnx", "readme.md"], "a/b/net.onnx"),
        (ONNX, ["model.onnx", "old/model.onnx", "other.onnx"], "model.onnx"),
        (ONNX, ["net/model.onnx", "net/encoder.onnx"], "net/model.onnx"),
        (ONNX, ["net.onnx", "._net.onnx", "__MACOSX/net.onnx", ".cache/net.onnx", "@eaDir/net.onnx"], "net.onnx"),
        (ONNX, ["a.onnx", "b.onnx"], None),
        (ONNX, ["a/model.onnx", "b/model.onnx"], None),
        (ONNX, ["saved_model.pb"], None),
        (ONNX, [], None),
        (TFLITE, ["a/net.tflite", "a/labels.txt", "net.onnx"], "a/net.tflite"),
        (TFLITE, ["model.tflite", "old.tflite"], "model.tflite"),
        (TFLITE, ["a.tflite", "b.tflite"], None),
        (SAVED_MODEL, ["faces/4/saved_model.pb", "faces/4/variables/variables.index"], "faces/4"),
        (SAVED_MODEL, ["saved_model.pb", "keras_metadata.pb"], "."),
        (SAVED_MODEL, ["1/saved_model.pb", "2/saved_model.pb"], None),
        (SAVED_MODEL, ["frozen.pb", "net.tflite"], None),
    ],
)
def test_which_part_of_an_archive_is_the_model(
    form: ModelFormat, names: list[str], wanted: str | None, tmp_path: Path
) -> None:
    make_files(tmp_path, names)
    if wanted:
        assert model_file(tmp_path, form) == tmp_path / wanted
        return
    with pytest.raises(FetchError, match=NAMED[form]) as caught:
        model_file(tmp_path, form)
    assert caught.value.reason is FetchReason.NO_MODEL_FILE
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (["m.tflite"], TFLITE),
        (["m.tflite.gz"], TFLITE),
        (["m.onnx"], ONNX),
        (["m"], ONNX),
        (["m/a.tflite"], TFLITE),
        (["m/1/saved_model.pb"], SAVED_MODEL),
        (["m/a.onnx"], ONNX),
        (["m/README"], ONNX),
    ],
)
def test_the_format_of_a_local_model_is_seen_from_its_files(
    names: list[str], form: ModelFormat, tmp_path: Path
) -> None:
    make_files(tmp_path, names)
    assert format_at(tmp_path / names[0].split("/")[0]) is form


@pytest.mark.parametrize("head", [b"BZh91AY&SY", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"Rar!\x1a\x07\x00"])
async def test_other_archives_are_told_what_to_be(head: bytes, cache: Cache) -> None:
    reason, _ = await refusal(unpack(cache, stored(cache, head + bytes(100))), r"use tar, tar\.gz or zip")
    assert reason is FetchReason.BAD_ARCHIVE


async def test_one_that_has_just_been_evicted_is_a_failure_that_passes(cache: Cache) -> None:
    fetched = stored(cache, tar(FILES))
    assert cache.remove(fetched.digest)
    assert await refusal(unpack(cache, fetched)) == (FetchReason.CACHE_FAILED, True)


async def test_folders_may_be_named_after_their_files_or_twice(cache: Cache) -> None:
    folder = member("a", type=b"5", mode=0o000)
    for content in (
        tar_of((member("a/b/c.txt", size=1), b"c"), (folder, b""), (folder, b"")),
        zip_of((zipfile.ZipInfo("a/b/c.txt"), b"c"), (zipfile.ZipInfo("a/"), b"")),
    ):
        assert tree(await unpack(cache, stored(cache, content))) == {"a/b/c.txt": b"c"}


@pytest.mark.parametrize("size", [0, 1])
def test_too_many_members_are_counted_before_anything_is_called_damaged(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(11_000):
            archive.writestr(f"a-name-of-some-length-{number}", bytes(size))
    (tmp_path / "out").mkdir()
    unpacking = Unpacking(tmp_path / "out", ArchiveLimits(), path.stat().st_size, threading.Event())
    with pytest.raises(ArchiveRefusedError, match="it has more than 10000 members"):
        unpack_zip(path, unpacking)
    assert not list((tmp_path / "out").iterdir())
