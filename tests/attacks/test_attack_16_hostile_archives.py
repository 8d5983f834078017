"""Attack 16: archives that write where they should not, make what they should not, or become more than there is room.

Nothing of a refused archive stays, nothing outside of its folder changes, and no refusal takes memory to speak of.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import random
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache as cached
from functools import partial
from pathlib import Path

import pytest

from halimede.models import Cache, FetchError, FetchReason
from halimede.models.archive import ArchiveLimits, unpack
from tests.programs import run_python
from tests.unit.models.archives import FILES, member, stored, tar, tar_of, tree, zip_of, zipped

OUTSIDE = b"written by an archive"
ROOT = Path(__file__).parents[2]
#: of a whole process that has refused them all
ENOUGH_KIB = 120 * 1024


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "victim").write_bytes(b"untouched")
    return Cache(tmp_path / "cache")


async def refusal(cache: Cache, content: bytes, limits: ArchiveLimits | None = None) -> FetchError:
    """The refusal of an archive that leaves nothing behind."""
    fetched = stored(cache, content)
    with pytest.raises(FetchError) as caught:
        await unpack(cache, fetched, limits=limits)
    assert not [path for path in (cache.root / "unpacked").iterdir() if fetched.digest in path.name]
    beside = {path.name for path in cache.root.parent.iterdir()}
    assert beside == {"cache", "victim"}
    assert (cache.root.parent / "victim").read_bytes() == b"untouched"
    assert not Path("/tmp/halimede-attack-16").exists()
    assert not caught.value.temporary, "it would be tried again at once"
    return caught.value


def link(kind: bytes, name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=to), b""


def written(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, size=len(OUTSIDE)), OUTSIDE


#: a pebibyte that no byte of the archive stands for
HOLES = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
MODEL = (member("model.onnx", size=3), b"abc")
TARS: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "..": [written("../victim")],
    ".. in the middle": [written("a/../../../victim")],
    ".. that stays inside": [written("a/../b")],
    "only ..": [(member("..", type=tarfile.DIRTYPE), b"")],
    "absolute": [written("/tmp/halimede-attack-16")],
    "absolute, twice": [written("//tmp/halimede-attack-16")],
    "symbolic link": [link(tarfile.SYMTYPE, "model.onnx", "/etc/passwd")],
    "symbolic link inside": [MODEL, link(tarfile.SYMTYPE, "other.onnx", "model.onnx")],
    "through a symbolic link": [link(tarfile.SYMTYPE, "a", "../.."), written("a/victim")],
    "hard link": [link(tarfile.LNKTYPE, "model.onnx", "/etc/passwd")],
    "hard link up": [link(tarfile.LNKTYPE, "model.onnx", "../../victim"), written("model.onnx")],
    "hard link inside": [MODEL, link(tarfile.LNKTYPE, "other.onnx", "model.onnx")],
    "character device": [(member("model.onnx", type=tarfile.CHRTYPE, devmajor=1, devminor=5), b"")],
    "block device": [(member("model.onnx", type=tarfile.BLKTYPE, devmajor=8), b"")],
    "pipe": [(member("model.onnx", type=tarfile.FIFOTYPE), b"")],
    "contiguous file": [(member("model.onnx", type=tarfile.CONTTYPE), b"")],
    "unknown kind": [(member("model.onnx", type=b"Z"), b"")],
    "sparse": [(member("model.onnx", pax_headers={"GNU.sparse.size": str(1 << 50), "GNU.sparse.map": "0,0"}), b"")],
    "nothing but holes": [(member("model.onnx", size=512, pax_headers=HOLES), b"0\n".ljust(512))],
    "same name twice": [MODEL, MODEL],
    "same name twice in other words": [MODEL, (member("./model.onnx", size=3), b"xyz")],
    "a file where a folder is": [(member("a/b", size=1), b"b"), (member("a", size=1), b"a")],
    "a folder and a file of the same name": [(member("a", size=1), b"a"), (member("a/b", size=1), b"b")],
    "no name": [(member("./", size=3), b"abc")],
    "backslash": [written("..\\victim")],
    "control character": [written("a\x1b[2Jb")],
    "not UTF-8": [written(os.fsdecode(b"a\xff"))],
    "deep": [written("a/" * 20 + "b")],
    "long": [written("a" * 300)],
}


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.create_system, made.external_attr = 3, mode << 16
    return made


ZIPS: dict[str, list[tuple[zipfile.ZipInfo, bytes]]] = {
    "..": [(entry("../victim"), OUTSIDE)],
    ".. in the middle": [(entry("a/../../../victim"), OUTSIDE)],
    "absolute": [(entry("/tmp/halimede-attack-16"), OUTSIDE)],
    "symbolic link": [(entry("model.onnx", stat.S_IFLNK | 0o777), b"/etc/passwd")],
    "device": [(entry("model.onnx", stat.S_IFCHR | 0o666), b"")],
    "pipe": [(entry("model.onnx", stat.S_IFIFO | 0o666), b"")],
    "socket": [(entry("model.onnx", stat.S_IFSOCK | 0o666), b"")],
    "same name in other words": [(entry("a"), b"a"), (entry("./a"), b"b")],
    "a folder and a file of the same name": [(entry("a"), b"a"), (entry("a/b"), b"b")],
    "backslash": [(entry("a\\..\\..\\victim"), OUTSIDE)],
}


ARCHIVES: dict[str, Callable[[], bytes]] = {
    **{f"{mode} {what}": partial(tar_of, *TARS[what], mode=mode) for mode in ("w", "w:gz") for what in TARS},
    **{f"zip {what}": partial(zip_of, *ZIPS[what]) for what in ZIPS},
    "zip a name twice": lambda: zip_of((entry("a"), b"1"), (entry("a"), b"2")),
    "zip a zero in a name": lambda: zipped({"model.onnxXevil": b"x"}).replace(b"onnxX", b"onnx\0"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", ARCHIVES)
async def test_attack_16_archives_that_are_no_mere_files(what: str, cache: Cache) -> None:
    error = await refusal(cache, ARCHIVES[what]())
    assert error.reason is FetchReason.UNSAFE_ARCHIVE
    assert "is refused" in str(error)


async def test_attack_16_modes_of_strangers_are_not_kept(cache: Cache) -> None:
    content = tar_of(
        (member("bin", type=tarfile.DIRTYPE, mode=0o7777, uid=1000, gid=1000), b""),
        (member("bin/sh", size=1, mode=0o7777, uid=1000, gid=1000, mtime=1), b"x"),
    )
    for archive in (content, zip_of((entry("bin/sh", stat.S_IFREG | 0o6777), b"x"))):
        folder = await unpack(cache, stored(cache, archive))
        file, below = (folder / "bin" / "sh").stat(), (folder / "bin").stat()
        assert (stat.S_IMODE(file.st_mode), stat.S_IMODE(below.st_mode)) == (0o400, 0o700)
        assert (file.st_uid, below.st_uid) == (os.getuid(), os.getuid())


@cached
def zeros(mebibytes: int) -> bytes:
    """A tar.gz with so many MiB of nothing, made in pieces."""
    buffer, block = io.BytesIO(), bytes(1 << 20)
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9) as out:
        out.write(member("model.onnx", size=mebibytes << 20).tobuf())
        for _ in range(mebibytes):
            out.write(block)
        out.write(bytes(10240))
    return buffer.getvalue()


def overlapping(copies: int = 5000) -> bytes:
    """A zip whose directory names one compressed MiB thousands of times."""
    content = zipped({"0000.bin": bytes(1 << 20)})
    end = content.index(b"PK\x05\x06")
    start = struct.unpack("<L", content[end + 16 : end + 20])[0]
    one = content[start:end]
    directory = b"".join(one.replace(b"0000", f"{i:04}".encode()) for i in range(copies))
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, copies, copies, len(directory), start, 0)
    return content[:start] + directory + tail


@pytest.mark.slow
async def test_attack_16_bombs_are_stopped_by_what_comes_out_of_them(cache: Cache) -> None:
    for bomb in (zeros(1024), zipped({"a.bin": bytes(200 << 20)})):
        assert len(bomb) < 2_000_000
        error = await refusal(cache, bomb)
        assert (error.reason, "exceeds the limits" in str(error)) == (FetchReason.TOO_LARGE, True)


async def test_attack_16_what_is_not_compressed_is_bounded_too(cache: Cache) -> None:
    small = ArchiveLimits(members=10, max_bytes=1_000_000)
    assert (await refusal(cache, tar({"a": os.urandom(2_000_000)}, "w"), small)).reason is FetchReason.TOO_LARGE
    many = {f"{i}": b"" for i in range(20)}
    for content in (tar(many), zipped(many)):
        assert (await refusal(cache, content, small)).reason is FetchReason.TOO_LARGE
        assert tree(await unpack(cache, stored(cache, content), limits=replace(small, members=20))) == many


async def test_attack_16_a_zip_that_names_one_piece_many_times(cache: Cache) -> None:
    reason = (await refusal(cache, overlapping())).reason
    assert reason in {FetchReason.TOO_LARGE, FetchReason.BAD_ARCHIVE}  # later Pythons see it first


def long_header(kind: bytes, size: int, body: bytes) -> bytes:
    """A header that tells of a name or of facts of the next one, and claims so many bytes for them."""
    info = member("x", type=kind, size=size)
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + body + tar(FILES, "w"), compresslevel=1)


def chain(kind: bytes, length: int) -> bytes:
    record = b"12 path=abc\n".ljust(512, b"\0")
    info = member("x", type=kind, size=12).tobuf(tarfile.GNU_FORMAT)
    return gzip.compress((info + record) * length + tar(FILES, "w"))


def with_size(size: int) -> bytes:
    """A first member of any size: negative ones lead the reader back to where it was."""
    header = bytearray(member("a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(member("b").tobuf()) + bytes(header) + tar(FILES, "w")


HEADERS: dict[str, Callable[[], bytes]] = {
    "a name of 1 GiB": lambda: long_header(tarfile.GNUTYPE_LONGNAME, 1 << 30, bytes(100 << 20)),
    "facts of 1 GiB": lambda: long_header(tarfile.XHDTYPE, 1 << 30, bytes(100 << 20)),
    "facts for all of 1 GiB": lambda: long_header(tarfile.XGLTYPE, 1 << 30, bytes(100 << 20)),
    "a number without end": lambda: long_header(tarfile.XHDTYPE, 60_000, b"1" * 60_416),
    "a chain of facts": lambda: chain(tarfile.XHDTYPE, 5000),
    "a chain of names": lambda: chain(tarfile.GNUTYPE_LONGNAME, 5000),
    "a negative length": lambda: with_size(-1024),
    "a negative length that comes to nothing": lambda: with_size(-1),
    "8 EiB": lambda: with_size(1 << 63),
}


@pytest.mark.parametrize("what", HEADERS)
async def test_attack_16_headers_that_want_too_much(what: str, cache: Cache) -> None:
    error = await refusal(cache, HEADERS[what]())
    assert error.reason in {FetchReason.BAD_ARCHIVE, FetchReason.TOO_LARGE}


MEASURE = """
import asyncio, sys
from pathlib import Path
from halimede.models import Cache, FetchError
from halimede.models.archive import unpack
from tests.unit.models.archives import stored

for path in sys.argv[2:]:
    try:
        asyncio.run(unpack(Cache(Path(sys.argv[1])), stored(Cache(Path(sys.argv[1])), Path(path).read_bytes())))
    except FetchError as error:
        print(error.reason)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


@pytest.mark.slow
async def test_attack_16_no_refusal_takes_memory(tmp_path: Path) -> None:
    paths = []
    for i, content in enumerate([zeros(1024), overlapping(), *(make() for make in HEADERS.values())]):
        paths.append(tmp_path / f"{i}.archive")
        paths[-1].write_bytes(content)
    done = await asyncio.to_thread(run_python, "-c", MEASURE, tmp_path / "cache", *paths, cwd=ROOT, check=True)
    *reasons, most_kib = done.stdout.split()
    assert len(reasons) == len(paths)
    assert int(most_kib) < ENOUGH_KIB


async def test_attack_16_zips_whose_directory_lies(cache: Cache) -> None:
    good = zipped({"model.onnx": b"x" * 1000}, zipfile.ZIP_STORED)
    end = good.index(b"PK\x05\x06")
    sizes = good.index(b"PK\x01\x02") + 20  # compressed and plain, in the directory
    encrypted = good.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")
    bzip2 = zipped({"model.onnx": b"x" * 1000}, zipfile.ZIP_BZIP2)
    lies = [
        good[:sizes] + struct.pack("<LL", 2000, 2000) + good[sizes + 8 :],
        good[:sizes] + struct.pack("<LL", 10, 10) + good[sizes + 8 :],
        good[: end + 12] + struct.pack("<L", 0xFFFFFFF0) + good[end + 16 :],
        good[: end + 16] + struct.pack("<L", 0xFFFFFFF0) + good[end + 20 :],
        good[:200] + b"y" + good[201:],
        encrypted,
        bzip2,
    ]
    assert encrypted != good
    for lie in lies:
        assert (await refusal(cache, lie)).reason is FetchReason.BAD_ARCHIVE


async def test_attack_16_half_an_archive_is_none(cache: Cache) -> None:
    for whole in (tar(FILES, "w"), tar(FILES), zipped(FILES)):
        for length in (600, len(whole) // 2, len(whole) - 11_000, len(whole) - 5):
            # what is cut off behind a plain tar's end is not missed
            if 0 < length < len(whole) and not (whole.startswith(b"model") and length == len(whole) - 5):
                assert (await refusal(cache, whole[:length])).reason is FetchReason.BAD_ARCHIVE


async def test_attack_16_a_broken_header_is_not_taken_for_the_end(cache: Cache) -> None:
    whole = tar(FILES, "w")
    second = 1024  # behind a header and a body of one block each
    broken = whole[:second] + b"?" + whole[second + 1 :]
    for content in (whole[:second], whole[: second + 100], broken, gzip.compress(broken)):
        assert (await refusal(cache, content)).reason is FetchReason.BAD_ARCHIVE


@pytest.mark.parametrize("seed", range(3))
async def test_attack_16_no_damage_breaks_out_of_the_reader(seed: int, cache: Cache) -> None:
    chance = random.Random(seed)
    wholes = [tar(FILES, "w"), tar(FILES), zipped(FILES), tar_of(*TARS["sparse"], mode="w"), chain(b"x", 3)]
    outcomes = set()
    for _ in range(200):
        content = bytearray(chance.choice(wholes))
        for _ in range(chance.randint(1, 8)):
            # most of what matters is in the first and last kilobytes
            at = chance.choice([chance.randrange(len(content)), chance.randrange(1024), -chance.randrange(1, 512)])
            content[at % len(content)] = chance.choice([0, 255, 0x80, chance.randrange(256)])
        try:
            place = await unpack(cache, stored(cache, bytes(content)))
            assert not [path for path in place.rglob("*") if path.is_symlink()]
            outcomes.add("unpacked")
        except FetchError as error:
            outcomes.add(error.reason)
    assert outcomes == {"unpacked", FetchReason.BAD_ARCHIVE, FetchReason.UNSAFE_ARCHIVE}
    assert {path.name for path in cache.root.parent.iterdir()} == {"cache", "victim"}
