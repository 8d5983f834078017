"""Attack 25: gzip with an endless name, or 100 MB of empty members: refused, and ended by time."""

from __future__ import annotations

import asyncio
import gzip
import zipfile
import zlib
from pathlib import Path

import pytest

from halimede.models import Cache, FetchError, FetchReason, archive, fetch
from halimede.models.archive import ArchiveLimits, unpack
from tests.waiting import patience

MIB = 1024**2
#: bytes of an archive; seconds by which it has to be over, on a busy machine: to the end it would take minutes
SIZE, OVER_S = 100 * MIB, 20.0
#: a header with the flag that a name follows
NAMED = b"\x1f\x8b\x08\x08" + bytes(6)
#: final, stored and empty: a member's end; and a stored and empty block that more follow
EMPTY_MEMBER, EMPTY_BLOCK = gzip.compress(b""), b"\x00\x00\x00\xff\xff"


def endless_name(path: Path) -> None:
    path.write_bytes(NAMED + b"x" * SIZE)


def empty_members(path: Path) -> None:
    path.write_bytes(EMPTY_MEMBER * (SIZE // len(EMPTY_MEMBER)))


def empty_blocks_in_a_zip(path: Path) -> None:
    """Write a zip whose file has nothing but empty blocks: its directory is right about that."""
    body = EMPTY_BLOCK * (SIZE // len(EMPTY_BLOCK)) + b"\x03\x00"
    assert zlib.decompress(body[-12:], wbits=-15) == b""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
        made.writestr("model.onnx", body)
    data = bytearray(path.read_bytes())
    for at, method, sizes in ((0, 8, 14), (data.rindex(b"PK\x01\x02"), 10, 16)):
        data[at + method : at + method + 2] = zipfile.ZIP_DEFLATED.to_bytes(2, "little")
        data[at + sizes : at + sizes + 4] = bytes(4)
        data[at + sizes + 8 : at + sizes + 12] = (MIB).to_bytes(4, "little")
    path.write_bytes(data)


@pytest.fixture(params=[endless_name, empty_members, empty_blocks_in_a_zip])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    request.param(tmp_path / "model.tar.gz")
    return tmp_path / "model.tar.gz"


async def unpacked(model: Path, limits: ArchiveLimits | None = None) -> Path:
    cache = Cache(model.parent / "cache")
    return await unpack(cache, await fetch(str(model), "", cache), limits=limits)


async def test_attack_25_bytes_that_hold_nothing_are_refused(model: Path) -> None:
    async with asyncio.timeout(patience(OVER_S)):
        with pytest.raises(FetchError, match="bytes in a row are empty") as caught:
            await unpacked(model)
    assert caught.value.reason is FetchReason.BAD_ARCHIVE


async def test_attack_25_an_archive_ends_by_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_EMPTY_BYTES", SIZE * 2)
    async with asyncio.timeout(patience(OVER_S)):
        with pytest.raises(FetchError, match=r"more than 0.02 s") as caught:
            await unpacked(model, ArchiveLimits(seconds=0.02))
    assert caught.value.reason is FetchReason.TIMEOUT
