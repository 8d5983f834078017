"""Models from an S3 store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.models import Cache, FetchError, FetchReason, TransferLimits, fetch, probe
from tests.unit.models.s3_world import BODY, DIGEST, PATIENT, SECRET, URL, Store, serving
from tests.waiting import patience

QUICK = TransferLimits(connect_s=5, inactivity_s=1, total_s=20, max_bytes=10_000_000)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    async with serving() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


async def failure(cache: Cache, url: str = URL, sha256: str = "", limits: TransferLimits = PATIENT) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetch(url, sha256, cache, limits=limits)
    assert list((cache.root / "sha256").glob("*")) == []
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    return caught.value


async def test_an_object_comes_into_the_cache_and_tells_its_progress(store: Store, cache: Cache) -> None:
    seen: list[tuple[int, int | None]] = []
    fetched = await fetch(URL, DIGEST, cache, lambda *at: seen.append(at), limits=PATIENT)
    assert fetched.path.read_bytes() == BODY
    assert len(seen) > 1
    assert seen[-1] == (len(BODY), len(BODY))


async def test_unchanged_content_is_not_sent_again(store: Store, cache: Cache) -> None:
    first = await fetch(URL, "", cache, limits=PATIENT)
    assert await fetch(URL, "", cache, limits=PATIENT) == first
    assert [r.headers.get("If-None-Match") for r in store.requests] == [None, '"1"']
    store.body, store.etag = BODY[:-1], '"2"'
    assert (await fetch(URL, "", cache, limits=PATIENT)).digest != first.digest


async def test_a_public_bucket_needs_no_key(store: Store, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCESS_KEY_ID")
    monkeypatch.delenv("SECRET_ACCESS_KEY")
    error = await failure(cache)
    assert (error.reason, error.temporary) == (FetchReason.ACCESS_DENIED, False)
    store.public = True
    assert (await fetch(URL, DIGEST, cache, limits=PATIENT)).size == len(BODY)
    assert all("Authorization" not in request.headers for request in store.requests)


async def test_a_wrong_key_is_refused(store: Store, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCESS_KEY_ID", "OTHER")
    error = await failure(cache)
    assert (error.reason, error.temporary) == (FetchReason.ACCESS_DENIED, False)


async def test_what_is_not_there(store: Store, cache: Cache) -> None:
    error = await failure(cache, "s3://models/other.onnx")
    assert (error.reason, error.temporary) == (FetchReason.NOT_FOUND, False)


async def test_a_store_in_trouble_may_be_better_later(store: Store, cache: Cache) -> None:
    store.status = 503
    assert (await failure(cache)).temporary
    assert len(store.requests) == 1  # patience is the caller's


@pytest.mark.parametrize("how", ["breaks", "hangs"])
async def test_half_an_object_is_gone_on_with(how: str, store: Store, cache: Cache) -> None:
    store.how = how
    error = await failure(cache, limits=QUICK)
    assert error.temporary
    store.how = "whole"
    assert (await fetch(URL, "", cache, limits=PATIENT)).path.read_bytes() == BODY
    if how == "hangs":  # of what breaks off, the network may have lost what came last
        asked = store.requests[-1].headers
        assert (asked["Range"].startswith("bytes="), asked["If-Range"]) == (True, store.etag)


async def test_bounds_hold(store: Store, cache: Cache) -> None:
    error = await failure(cache, limits=TransferLimits(max_bytes=1_000_000))
    assert (error.reason, error.temporary) == (FetchReason.TOO_LARGE, False)


async def test_a_wrong_digest_is_refused(store: Store, cache: Cache) -> None:
    assert (await failure(cache, sha256="0" * 64)).reason is FetchReason.DIGEST_MISMATCH


async def test_nobody_there_may_be_better_later(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    error = await failure(cache)
    assert (error.reason, error.temporary) == (FetchReason.UNREACHABLE, True)


@pytest.mark.parametrize(
    "url", ["s3://models", "s3:///key", "s3://u:hunter2@models/key", "s3://Mo_dels/key", "s3://models/k?x=hunter2"]
)
async def test_a_bad_url_is_said(url: str, store: Store, cache: Cache) -> None:
    assert (await failure(cache, url)).reason is FetchReason.INVALID_URL
    assert store.requests == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SECRET_ACCESS_KEY", ""),
        ("ACCESS_KEY_ID", ""),
        ("S3_USE_HTTPS", "maybe"),
        ("S3_ENDPOINT_URL", "http://u:hunter2@h"),
    ],
)
async def test_a_bad_environment_is_said(
    name: str, value: str, store: Store, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    error = await failure(cache)
    assert name in str(error)
    assert not error.temporary


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, sys
os.environ |= dict(ACCESS_KEY_ID="a", SECRET_ACCESS_KEY="b")
sys.modules["obstore"] = None
from halimede.models import Cache, FetchError, fetch
from pathlib import Path
try:
    asyncio.run(fetch({URL!r}, "", Cache(Path({str(tmp_path)!r}))))
except FetchError as error:
    print(error.reason, error.temporary, error)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=patience(60)
    ).stdout
    assert said.startswith("NotInstalled False")
    assert 'pip install "halimede[s3]"' in said


async def test_a_folder_needs_only_a_store_that_answers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await probe(URL)
    await probe("s3://models/pictures/")
    with pytest.raises(FetchError, match="404"):
        await probe("s3://models/pictures")
    monkeypatch.delenv("ACCESS_KEY_ID")
    monkeypatch.delenv("SECRET_ACCESS_KEY")
    with pytest.raises(FetchError, match="denied access with no credentials"):
        await probe("s3://models/pictures/")
