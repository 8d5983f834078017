"""An origin that is away, and a bus that has what it had. In simulated time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede.blobs import with_fallback
from halimede.blobs.uris import url
from halimede.models import Cache, Fetched, FetchError, FetchReason

pytestmark = pytest.mark.simulated

DIGEST = "0" * 64
AWAY = FetchError(FetchReason.UNREACHABLE, "away", temporary=True)
OPENERS: dict[str, Any] = {"bus": None}


class Origin:
    """Stands for the fetcher: fails at what is not of the bus."""

    def __init__(self, error: FetchError, bus: FetchError | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.error = error
        self.bus = bus

    async def __call__(self, url_: str, sha256: str, cache: Cache, *_: Any, **__: Any) -> Fetched:
        await asyncio.sleep(0)
        self.asked.append((url_, sha256))
        if not url_.startswith("bus:"):
            raise self.error
        if self.bus:
            raise self.bus
        return Fetched(cache.path(sha256), sha256, 1)


async def fetched(origin: Origin, url_: str, sha256: str, openers: dict[str, Any] | None = None) -> Fetched:
    openers = OPENERS if openers is None else openers
    return await with_fallback(origin, url_, sha256, Cache(Path("/nowhere")), openers=openers)


@pytest.mark.parametrize("scheme", ["http", "https", "s3"])
async def test_an_origin_that_is_away_is_replaced_by_the_bus(scheme: str) -> None:
    origin = Origin(AWAY)
    assert (await fetched(origin, f"{scheme}://host/m.onnx", DIGEST)).digest == DIGEST
    assert origin.asked == [(f"{scheme}://host/m.onnx", DIGEST), (url("any", DIGEST), DIGEST)]


@pytest.mark.parametrize(
    ("error", "url_", "sha256", "openers"),
    [
        (FetchError(FetchReason.NOT_FOUND, "gone"), "http://host/m", DIGEST, OPENERS),
        (FetchError(FetchReason.DIGEST_MISMATCH, "other"), "http://host/m", DIGEST, OPENERS),
        (FetchError(FetchReason.CACHE_FAILED, "full", temporary=True), "http://host/m", DIGEST, OPENERS),
        (AWAY, "http://host/m", "", OPENERS),
        (AWAY, "http://host/m", DIGEST, {}),
        (AWAY, "/data/m", DIGEST, OPENERS),
    ],
)
async def test_the_bus_is_for_nothing_else(error: FetchError, url_: str, sha256: str, openers: dict[str, Any]) -> None:
    origin = Origin(error)
    with pytest.raises(FetchError) as caught:
        await fetched(origin, url_, sha256, openers)
    assert caught.value is error
    assert len(origin.asked) == 1


async def test_when_the_bus_does_not_help_the_origins_reason_stands() -> None:
    origin = Origin(AWAY, FetchError(FetchReason.NOT_FOUND, "nobody has it"))
    with pytest.raises(FetchError) as caught:
        await fetched(origin, "http://host/m", DIGEST)
    assert caught.value is AWAY


async def test_a_bus_url_is_its_own_digest() -> None:
    origin = Origin(AWAY)
    await fetched(origin, url("edge0", DIGEST), "")
    assert origin.asked == [(url("edge0", DIGEST), DIGEST)]
    with pytest.raises(FetchError, match="correct one of the two"):
        await fetched(origin, url("edge0", DIGEST), "1" * 64)
