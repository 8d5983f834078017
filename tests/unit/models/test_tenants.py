"""A node's pods are of several tenants, and share its cache: nobody is given what only another may have."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from halimede.models import Cache, Fetched, FetchError, FetchReason, fetch
from tests.simulated import eventually
from tests.unit.models.s3_world import BODY, DIGEST, KEY_ID, PATIENT, SECRET, URL, Store, enter, serving
from tests.waiting import patience

NOBODY = {"S3_ENDPOINT_URL": "http://127.0.0.1:9"}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with serving() as store:
        yield store


class Tenant:
    """What one tenant's pods do on a node, each in an environment of its own."""

    def __init__(self, cache: Cache, environment: Mapping[str, str], patch: pytest.MonkeyPatch) -> None:
        self._cache, self._environment, self._patch = cache, environment, patch

    async def gets(self, sha256: str = "", url: str = URL) -> Fetched:
        """Fetch; only the beginning of it may run beside another tenant's."""
        for name in ("S3_ENDPOINT_URL", "S3_USE_HTTPS", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "S3_REGION"):
            self._patch.delenv(name, raising=False)
        enter(self._environment, self._patch)
        return await fetch(url, sha256, self._cache, limits=PATIENT)

    async def fails(self, sha256: str = "", url: str = URL) -> FetchReason:
        with pytest.raises(FetchError) as caught:
            await self.gets(sha256, url)
        return caught.value.reason


@pytest.fixture
def tenant(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], Tenant]:
    return lambda environment: Tenant(cache, environment, monkeypatch)


Tenants = Callable[[Mapping[str, str]], Tenant]


@pytest.mark.parametrize(
    "other", [NOBODY, {"ACCESS_KEY_ID": "OTHER"}, {"SECRET_ACCESS_KEY": "guessed"}, {"S3_REGION": "eu-west-1"}]
)
async def test_a_store_in_trouble_gives_nobody_anothers_model(
    other: dict[str, str], store: Store, tenant: Tenants
) -> None:
    a, b = tenant(store.environment), tenant({**store.environment, **other})
    await a.gets()
    store.public, store.status = True, 503  # whoever asks
    assert await b.fails() in {FetchReason.UNREACHABLE, FetchReason.HTTP_STATUS}
    assert (await a.gets()).fresh is False  # its own goes on without the network


async def test_nobody_chooses_what_another_gets(store: Store, tenant: Tenants) -> None:
    """The other's store answers to the same URL, with the mark that the real one has."""
    async with serving("OTHER") as evil:
        evil.body = b"another model"
        a, b = tenant(store.environment), tenant(evil.environment)
        assert (await b.gets()).path.read_bytes() == evil.body
        assert (await a.gets()).digest == DIGEST
        assert (await b.gets()).path.read_bytes() == evil.body
        assert (await a.gets()).digest == DIGEST
        assert [r.headers.get("If-None-Match") for r in store.requests] == [None, '"1"']


async def test_to_know_a_digest_is_not_enough(store: Store, tenant: Tenants) -> None:
    a, b = tenant(store.environment), tenant({**store.environment, **NOBODY})
    await a.gets(DIGEST)
    assert await b.fails(DIGEST) is FetchReason.UNREACHABLE
    assert await b.fails(DIGEST, url="http://127.0.0.1:9/x") is FetchReason.UNREACHABLE
    async with serving("OTHER") as evil:  # says that it has it, and has not
        evil.body = b"another model"
        assert await tenant(evil.environment).fails(DIGEST) is FetchReason.DIGEST_MISMATCH
    assert len(store.requests) == 1


async def test_who_has_had_it_is_given_it_again_without_the_network(store: Store, tenant: Tenants) -> None:
    a = tenant(store.environment)
    async with serving("OTHER") as copy:
        b = tenant(copy.environment)
        await a.gets()  # without a digest, which is added later
        await b.gets(DIGEST)
        store.status = copy.status = 503
        for owner in (a, b):
            assert (await owner.gets(DIGEST)).path.read_bytes() == BODY
        assert (len(store.requests), len(copy.requests)) == (1, 1)


async def test_what_is_open_to_all_stays_so(store: Store, tenant: Tenants, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(BODY)
    await tenant({}).gets(DIGEST, url=str(tmp_path / "model"))
    await tenant(store.environment).gets(DIGEST)
    assert store.requests == []
    await tenant(store.environment).gets()
    await tenant({}).gets(DIGEST, url="http://127.0.0.1:9/elsewhere")


async def test_a_store_that_hangs_holds_up_its_own_tenant_alone(store: Store, tenant: Tenants) -> None:
    async with serving("OTHER") as evil:
        evil.how = "hangs"
        hanging = asyncio.create_task(tenant(evil.environment).gets(DIGEST))
        await eventually(lambda: evil.requests, 30)
        async with asyncio.timeout(patience(20)):
            assert (await tenant(store.environment).gets(DIGEST)).size == len(BODY)
        hanging.cancel()
        await asyncio.wait([hanging])


async def test_nothing_that_opens_a_store_is_written(store: Store, tenant: Tenants, cache: Cache) -> None:
    for sha256 in ("", DIGEST):
        await tenant(store.environment).gets(sha256)
    files = [path for path in cache.root.rglob("*") if path.is_file() and path.name != DIGEST]
    assert len(files) > 3
    written = "".join(str(path.relative_to(cache.root)) + path.read_text() for path in files)
    for secret in (SECRET, KEY_ID, hashlib.sha256(SECRET.encode()).hexdigest()):
        assert secret not in written


@pytest.mark.parametrize(("user", "query"), [("u:guessed@", "?token=1"), ("u:1@", "?token=guessed"), ("", "?token=1")])
async def test_user_password_and_query_are_part_of_an_http_url(
    user: str, query: str, store: Store, tenant: Tenants
) -> None:
    store.public = True
    place = store.environment["S3_ENDPOINT_URL"] + "/models/a/small.onnx"
    await tenant({}).gets(url=f"http://u:1@{place}?token=1")
    store.status = 503
    assert await tenant({}).fails(url=f"http://{user}{place}{query}") is FetchReason.HTTP_STATUS
    assert (await tenant({}).gets(url=f"http://u:1@{place}?token=1")).fresh is False
