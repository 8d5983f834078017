"""Models from an S3 store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halimede.models import Cache, FetchError, FetchReason, TransferLimits, fetch, probe
from tests.programs import run_python
from tests.unit.models.s3_world import BODY, DIGEST, PATIENT, SECRET, URL, Store, enter, serving

QUICK = TransferLimits(connect_s=5, inactivity_s=1, total_s=20, max_bytes=10_000_000)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    async with serving() as store:
        enter(store.environment, monkeypatch)
        yield store


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


@pytest.mark.parametrize(
    ("changes", "asked", "reason"),
    [
        ({"key_id": "OTHER"}, {}, FetchReason.ACCESS_DENIED),
        ({}, {"url": "s3://models/other.onnx"}, FetchReason.NOT_FOUND),
        ({}, {"limits": TransferLimits(max_bytes=1_000_000)}, FetchReason.TOO_LARGE),
        ({}, {"sha256": "0" * 64}, FetchReason.DIGEST_MISMATCH),
        ({"status": 503}, {}, FetchReason.HTTP_STATUS),
    ],
    ids=["a wrong key", "what is not there", "what is too large", "another digest", "a store in trouble"],
)
async def test_what_does_not_come_has_its_reason_and_is_asked_for_once(
    changes: dict[str, Any], asked: dict[str, Any], reason: FetchReason, store: Store, cache: Cache
) -> None:
    vars(store).update(changes)
    error = await failure(cache, **asked)
    assert (error.reason, error.temporary) == (reason, reason is FetchReason.HTTP_STATUS)
    assert len(store.requests) == 1


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
    said = run_python("-c", code, check=True).stdout
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
