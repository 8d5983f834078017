"""Attack 15: bodies without an end, or so slow that they hold a place for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from halimede.models import AddressPolicy, Cache, FetchError, FetchReason, TransferLimits, fetch
from tests.origins import Handler, Origin, serving
from tests.waiting import patience

MB = 1_000_000
POLICY = AddressPolicy.parse("loopback")
#: that a drop now and then is too slow shows within seconds
LIMITS = TransferLimits(connect_s=5, inactivity_s=20, total_s=60, max_bytes=5 * MB, min_rate=10_000, rate_window_s=1.5)


@pytest.fixture
def origin() -> Iterator[Origin]:
    with serving(b"another model" * 1000) as origin:
        yield origin


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


async def refused(origin: Origin, cache: Cache, limits: TransferLimits = LIMITS) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetch(f"{origin.url}/m", "", cache, limits=limits, policy=POLICY)
    assert [path for path in cache.root.rglob("sha256/*") if path.is_file()] == []
    return caught.value


def kept(cache: Cache) -> int:
    """Bytes of what is unfinished."""
    return sum(path.stat().st_size for path in (cache.root / "parts").iterdir())


def body_of(headers: dict[str, str], blocks: Callable[[], Iterator[bytes]]) -> Callable[[Handler], bool]:
    def answer(handler: Handler) -> bool:
        handler.head(200, headers)
        with contextlib.suppress(OSError):
            for block in blocks():
                handler.wfile.write(block)
                handler.wfile.flush()
                handler.server.sent += len(block)
        handler.close_connection = True
        return True

    return answer


def endless() -> Iterator[bytes]:
    while True:
        yield bytes(100_000)


def endless_chunks() -> Iterator[bytes]:
    while True:
        yield b"186a0\r\n" + bytes(100_000) + b"\r\n"


def drops() -> Iterator[bytes]:
    while True:
        yield b"x"
        time.sleep(0.05)


def chunk_of_words() -> Iterator[bytes]:
    """Never a byte of a body, and never silent: what may stand beside the length of a chunk."""
    yield b"5;a="
    for _ in range(2000):
        yield b"a"
        time.sleep(0.05)


CHUNKED = {"Transfer-Encoding": "chunked"}


LARGE = FetchReason.TOO_LARGE, False, "larger than the limit"
SLOW = FetchReason.TOO_SLOW, True, "bytes a second"
BODIES = {
    "endless": (body_of({}, endless), *LARGE),
    "endless and chunked": (body_of(CHUNKED, endless_chunks), *LARGE),
    "a petabyte": (body_of({"Content-Length": str(10**15)}, endless), *LARGE),
    "a byte now and then": (body_of({}, drops), *SLOW),
    "a byte now and then of many": (body_of({"Content-Length": "4000000"}, drops), *SLOW),
    "awake without a byte": (body_of(CHUNKED, chunk_of_words), *SLOW),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_attack_15_a_body_without_end(kind: str, origin: Origin, cache: Cache) -> None:
    origin.answers["/m"], reason, temporary, text = BODIES[kind]
    error = await refused(origin, cache)
    assert (error.reason, error.temporary) == (reason, temporary)
    assert text in str(error)
    assert temporary or kept(cache) == 0


async def test_attack_15_what_follows_the_announced_length_is_no_part_of_it(origin: Origin, cache: Cache) -> None:
    origin.answers["/m"] = body_of({"Content-Length": "7"}, lambda: iter([b"a model" + bytes(MB)]))
    try:  # what comes at once is no HTTP any more
        fetched = await fetch(f"{origin.url}/m", "", cache, limits=LIMITS, policy=POLICY)
    except FetchError as error:
        assert error.reason is FetchReason.INTERRUPTED  # noqa: PT017  # either may happen
        assert kept(cache) <= len(b"a model") + 100
    else:
        assert fetched.path.read_bytes() == b"a model"


async def test_attack_15_headers_byte_by_byte(origin: Origin, cache: Cache) -> None:
    def answer(handler: Handler) -> bool:
        with contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 2000:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.05)
        return True

    origin.answers["/m"] = answer
    error = await refused(origin, cache, limits=replace(LIMITS, connect_s=1, inactivity_s=1))
    assert (error.reason, error.temporary) == (FetchReason.TIMEOUT, True)


async def test_attack_15_a_slow_one_holds_up_no_other(origin: Origin, cache: Cache) -> None:
    origin.answers["/m"] = body_of({}, drops)
    slow = asyncio.create_task(refused(origin, cache))
    async with asyncio.timeout(patience(20)):
        assert (await fetch(f"{origin.url}/other", "", cache, limits=LIMITS, policy=POLICY)).size == len(origin.body)
    slow.cancel()
    await asyncio.wait([slow])


async def test_attack_15_a_slow_disk_of_this_node_is_not_the_origins_fault(
    origin: Origin, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halimede.models.partial_download import PartialDownload

    origin.body = bytes(20 * 65_536)
    write = PartialDownload._write

    def slowly(part: PartialDownload, block: bytes) -> None:
        time.sleep(0.3)
        write(part, block)

    monkeypatch.setattr(PartialDownload, "_write", slowly)
    limits = replace(LIMITS, min_rate=3_000_000, rate_window_s=0.5)
    assert (await fetch(f"{origin.url}/m", "", cache, limits=limits, policy=POLICY)).size == len(origin.body)
