"""Attack 15: bodies with a wrong digest, without an end, or so slow that they hold a place for ever."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
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


async def refused(origin: Origin, cache: Cache, sha256: str = "", limits: TransferLimits = LIMITS) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetch(f"{origin.url}/m", sha256, cache, limits=limits, policy=POLICY)
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


@pytest.mark.parametrize("digest", ["0" * 64, hashlib.sha256(b"a model").hexdigest()])
async def test_attack_15_a_wrong_digest(digest: str, origin: Origin, cache: Cache) -> None:
    error = await refused(origin, cache, digest)
    assert (error.reason, error.temporary) == (FetchReason.DIGEST_MISMATCH, False)
    assert kept(cache) == 0


@pytest.mark.parametrize(
    "answer",
    [body_of({}, endless), body_of(CHUNKED, endless_chunks), body_of({"Content-Length": str(10**15)}, endless)],
    ids=["no length", "chunked", "a petabyte"],
)
async def test_attack_15_an_endless_body(answer: Callable[[Handler], bool], origin: Origin, cache: Cache) -> None:
    origin.answers["/m"] = answer
    error = await refused(origin, cache)
    assert (error.reason, error.temporary) == (FetchReason.TOO_LARGE, False)
    assert kept(cache) == 0


async def test_attack_15_what_follows_the_announced_length_is_no_part_of_it(origin: Origin, cache: Cache) -> None:
    origin.answers["/m"] = body_of({"Content-Length": "7"}, lambda: iter([b"a model" + bytes(MB)]))
    try:  # what comes at once is no HTTP any more
        fetched = await fetch(f"{origin.url}/m", "", cache, limits=LIMITS, policy=POLICY)
    except FetchError as error:
        assert error.reason is FetchReason.INTERRUPTED  # noqa: PT017  # either may happen
        assert kept(cache) <= len(b"a model") + 100
    else:
        assert fetched.path.read_bytes() == b"a model"


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "4000000"}], ids=["no length", "long"])
async def test_attack_15_a_byte_now_and_then(headers: dict[str, str], origin: Origin, cache: Cache) -> None:
    origin.answers["/m"] = body_of(headers, drops)
    error = await refused(origin, cache)
    assert (error.reason, error.temporary) == (FetchReason.TOO_SLOW, True)
    assert "bytes a second" in str(error)


async def test_attack_15_awake_without_a_byte(origin: Origin, cache: Cache) -> None:
    origin.answers["/m"] = body_of(CHUNKED, chunk_of_words)
    assert (await refused(origin, cache)).reason is FetchReason.TOO_SLOW


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


async def test_attack_15_silence(origin: Origin, cache: Cache) -> None:
    origin.before = lambda _: time.sleep(4)
    error = await refused(origin, cache, limits=replace(LIMITS, inactivity_s=0.5))
    assert (error.reason, error.temporary) == (FetchReason.TIMEOUT, True)


async def test_attack_15_redirects_without_end(origin: Origin, cache: Cache) -> None:
    def answer(handler: Handler) -> bool:
        handler.head(302, {"Location": f"/m?{len(origin.asked)}", "Content-Length": "0"})
        return True

    origin.answers = {"/m": answer} | {f"/m?{number}": answer for number in range(100)}
    assert (await refused(origin, cache)).reason is FetchReason.HTTP_STATUS
    assert len(origin.asked) < 10


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
