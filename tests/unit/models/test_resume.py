"""What is unfinished is gone on with, and is never taken for something that it is not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.models import Cache, Fetched, FetchReason, Stream, TransferLimits, fetch
from halimede.models import partial_download as part_module
from tests.origins import Handler, Origin
from tests.unit.models.archives import refusal
from tests.waiting import patience

SIZE, HALF = 3_000_000, 1_500_000
BODY, OTHER = (random.Random(seed).randbytes(SIZE) for seed in (1, 2))
DIGEST = hashlib.sha256(BODY).hexdigest()
PATIENT = TransferLimits(connect_s=30, inactivity_s=30, total_s=60)


def parts(cache: Cache) -> list[str]:
    return sorted(path.name for path in (cache.root / "parts").iterdir())


async def broken_off(origin: Origin, cache: Cache, sha256: str, path: str = "/model") -> int:
    """Begin a download and end it in the middle; return how much of it is here."""
    reached: list[int] = []

    def hold(at: int) -> None:
        if at > HALF:
            reached.append(at)
            time.sleep(1)

    origin.before = hold
    came: list[int] = []
    task = asyncio.create_task(
        fetch(f"{origin.url}{path}", sha256, cache, lambda done, _: came.append(done), limits=PATIENT)
    )
    async with asyncio.timeout(patience(30)):
        while not (reached and came and came[-1] > HALF - 1_000_000):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    origin.before = lambda _: None
    # a block that was on its way to the disk has come too
    return sum(path.stat().st_size for path in (cache.root / "parts").iterdir() if not path.suffix)


async def again(origin: Origin, cache: Cache, sha256: str, path: str = "/model") -> tuple[Fetched, list[int]]:
    seen: list[int] = []
    fetched = await fetch(f"{origin.url}{path}", sha256, cache, lambda done, _: seen.append(done), limits=PATIENT)
    assert parts(cache) == []
    return fetched, seen


@pytest.mark.parametrize(("sha256", "etag"), [(DIGEST, '"1"'), (DIGEST, ""), ("", '"1"'), (DIGEST, 'W/"1"')])
async def test_a_download_goes_on_where_it_ended(sha256: str, etag: str, origin: Origin, cache: Cache) -> None:
    origin.etag = etag
    here = await broken_off(origin, cache, sha256)
    fetched, seen = await again(origin, cache, sha256)
    assert fetched.path.read_bytes() == BODY
    assert (seen[0], seen[-1]) == (here, SIZE)
    asked = origin.asked[-1].headers
    assert asked["Range"] == f"bytes={here}-"
    assert asked["If-Range"] == ('"1"' if etag == '"1"' else None)


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
async def test_without_digest_and_strong_etag_nothing_is_kept(etag: str, origin: Origin, cache: Cache) -> None:
    origin.etag = etag
    await broken_off(origin, cache, "")
    assert parts(cache) == []
    fetched, seen = await again(origin, cache, "")
    assert (fetched.digest, seen[0]) == (DIGEST, 0)
    assert "Range" not in origin.asked[-1].headers


def ignores_if_range(handler: Handler) -> bool:
    del handler.headers["If-Range"]
    return False


def another_part(handler: Handler) -> bool:
    if "Range" not in handler.headers:
        return False
    handler.head(206, {"Content-Range": f"bytes 5-{SIZE - 1}/{SIZE}", "Content-Length": str(SIZE - 5)})
    handler.wfile.write(BODY[5:])
    return True


def no_named_part(handler: Handler) -> bool:
    if "Range" not in handler.headers:
        return False
    handler.head(206, {"Content-Length": "0"})
    return True


CHANGED = {"body": OTHER, "etag": '"2"'}


@pytest.mark.parametrize(
    ("sha256", "changes"),
    [
        (DIGEST, {"ranges": False}),
        ("", {"ranges": False}),
        ("", CHANGED),
        ("", CHANGED | {"answers": {"/model": ignores_if_range}}),
        ("", {"answers": {"/model": another_part}}),
        ("", {"answers": {"/model": no_named_part}}),
    ],
    ids=["no ranges, digest", "no ranges", "changed", "changed, no If-Range", "another part", "no named part"],
)
async def test_without_the_missing_part_of_the_same_content_a_download_begins_anew(
    sha256: str, changes: dict[str, Any], origin: Origin, cache: Cache
) -> None:
    await broken_off(origin, cache, sha256)
    vars(origin).update(changes)
    fetched, seen = await again(origin, cache, sha256)
    assert (fetched.path.read_bytes() == origin.body, seen[0]) == (True, 0)


async def test_a_beginning_that_was_wrong_costs_one_more_download(origin: Origin, cache: Cache) -> None:
    here = await broken_off(origin, cache, DIGEST)
    (cache.root / "parts" / DIGEST).write_bytes(bytes(here))  # as after a power cut
    fetched, seen = await again(origin, cache, DIGEST)
    assert fetched.path.read_bytes() == BODY
    assert (seen[0], 0 in seen) == (here, True)
    assert [("Range" in handler.headers) for handler in origin.asked] == [False, True, False]


async def test_a_wrong_digest_is_refused_after_a_resume_too(origin: Origin, cache: Cache) -> None:
    await broken_off(origin, cache, "0" * 64)
    reason, _ = await refusal(fetch(f"{origin.url}/model", "0" * 64, cache, limits=PATIENT))
    assert reason is FetchReason.DIGEST_MISMATCH
    assert len(origin.asked) == 3
    assert parts(cache) == []


async def test_another_address_of_the_same_digest_goes_on(origin: Origin, cache: Cache) -> None:
    here = await broken_off(origin, cache, DIGEST)
    fetched, _ = await again(origin, cache, DIGEST, "/mirror")
    assert fetched.path.read_bytes() == BODY
    asked = origin.asked[-1].headers
    assert (asked["Range"], asked["If-Range"]) == (f"bytes={here}-", None)  # its mark is the other's


async def test_what_was_whole_already_is_not_asked_for(origin: Origin, cache: Cache) -> None:
    await broken_off(origin, cache, DIGEST)
    (cache.root / "parts" / DIGEST).write_bytes(BODY)
    fetched, _ = await again(origin, cache, DIGEST)
    assert (fetched.path.read_bytes() == BODY, len(origin.asked)) == (True, 1)


@pytest.mark.parametrize("more", [b"", b"and more"])
async def test_a_part_as_long_as_the_whole_or_longer_begins_anew(more: bytes, origin: Origin, cache: Cache) -> None:
    await broken_off(origin, cache, "")
    name = next(name for name in parts(cache) if "." not in name)
    (cache.root / "parts" / name).write_bytes(BODY + more)  # the server says 416
    fetched, _ = await again(origin, cache, "")
    assert fetched.path.read_bytes() == BODY


@pytest.mark.parametrize("spoil", ["boot", "record", "none"])
async def test_what_cannot_be_relied_on_is_not_gone_on_with(
    spoil: str, origin: Origin, cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await broken_off(origin, cache, "")
    side = next((cache.root / "parts").glob("*.json"))
    if spoil == "boot":  # what never reached the disk reads as zeros
        (tmp_path / "boot").write_text("another")
        monkeypatch.setattr(part_module, "BOOT_ID", tmp_path / "boot")
    elif spoil == "record":
        side.write_bytes(b"{")
    else:
        side.unlink()
    fetched, seen = await again(origin, cache, "")
    assert (fetched.path.read_bytes() == BODY, seen[0]) == (True, 0)


async def test_the_whole_may_not_be_too_large_whatever_was_here(origin: Origin, cache: Cache) -> None:
    await broken_off(origin, cache, DIGEST)
    reason, _ = await refusal(fetch(f"{origin.url}/model", DIGEST, cache, limits=replace(PATIENT, max_bytes=SIZE - 1)))
    assert reason is FetchReason.TOO_LARGE
    assert parts(cache) == []


async def test_what_nobody_comes_back_to_is_removed(origin: Origin, cache: Cache) -> None:
    await broken_off(origin, cache, DIGEST)
    long_ago = time.time() - 4 * 86_400
    for path in (cache.root / "parts").iterdir():
        os.utime(path, (long_ago, long_ago))
    await fetch(f"{origin.url}/model", "", cache, limits=PATIENT)
    assert parts(cache) == []


async def test_of_a_callers_own_scheme_a_body_that_ends_early_is_no_model(cache: Cache) -> None:
    async def blocks() -> Any:
        yield BODY[:HALF]

    @asynccontextmanager
    async def opener(*_: Any) -> Any:
        yield Stream("", SIZE, blocks())

    assert await refusal(fetch("bus://x", "", cache, openers={"bus": opener})) == (FetchReason.INTERRUPTED, True)
    refused = await refusal(fetch("ftp://h/x", "", cache, openers={"bus": opener}), "bus://")
    assert refused == (FetchReason.UNSUPPORTED_SCHEME, False)
