"""Uploads to a folder, to a real HTTP server, and to one that speaks S3: whole and as they were, or not at all."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from aiohttp import encode_basic_auth, web

from halimede.models import AddressPolicy, FetchError, FetchReason, TransferLimits
from halimede.models.upload import Uploaded, upload
from tests.ports import serve_app
from tests.unit.models.s3_world import BODY, DIGEST, PATIENT, SECRET, enter, environment_of

BIG = os.urandom(20_000_000)


class Store:
    """Takes what is put, over plain HTTP and as S3 does. What it answers, tests change as they go."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[web.Request] = []
        self.statuses: list[int] = []
        self.says = ""
        self.pause = 0.0
        self.url = ""

    async def put(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        await asyncio.sleep(self.pause)
        body = await request.read()
        status = self.statuses.pop(0) if self.statuses else 201
        if status >= 300:
            return web.Response(status=status, headers={"Location": "/elsewhere"}, text=SECRET)
        if "Content-Digest" in request.headers:
            assert request.headers["Content-Digest"] == f"sha-256=:{sha256(body)}:"
            assert int(request.headers["Content-Length"]) == len(body)
        if "x-amz-checksum-sha256" in request.headers:
            assert request.headers["x-amz-checksum-sha256"] == sha256(body)
        headers = {"ETag": '"1"'} | ({"Repr-Digest": self.says} if self.says else {})
        if "partNumber" in request.query:
            self.parts.setdefault(request.path, {})[int(request.query["partNumber"])] = body
        else:
            self.objects[request.path] = body
        return web.Response(status=status if not request.query else 200, headers=headers)

    async def post(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if "uploads" in request.query:
            text = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
            return web.Response(text=text)
        parts = self.parts.pop(request.path)
        self.objects[request.path] = b"".join(parts[number] for number in sorted(parts))
        return web.Response(text='<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')

    async def head(self, request: web.Request) -> web.StreamResponse:
        body = self.objects.get(request.path)
        if body is None:
            return web.Response(status=404)
        headers = {"ETag": '"1"', "Last-Modified": "Sat, 01 Aug 2026 10:00:00 GMT", "Content-Length": str(len(body))}
        return web.Response(headers=headers)


def sha256(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = Store()
    app = web.Application(client_max_size=64_000_000)
    app.router.add_put("/{path:.*}", store.put)
    app.router.add_post("/{path:.*}", store.post)
    app.router.add_head("/{path:.*}", store.head)
    async with serve_app(app) as store.url:
        yield store


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(BODY)
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    (folder / "a b").mkdir(parents=True)
    (folder / "a b" / "ä#1.txt").write_bytes(b"one")
    (folder / "two.txt").write_bytes(b"")
    (folder / "link").symlink_to("/etc/passwd")
    return folder


async def failure(path: Path, url: str, **options: object) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await upload(path, url, **{"limits": PATIENT, "patience_s": 0, **options})  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    return caught.value


async def test_a_file_of_this_machine_is_replaced_at_once(model: Path, tmp_path: Path) -> None:
    to = tmp_path / "out" / "model.onnx"
    seen: list[tuple[int, int]] = []
    done = await upload(model, f"file://{to}", progress=lambda sent, whole: seen.append((sent, whole)))
    assert done == [Uploaded(f"file://{to}", len(BODY), DIGEST)]
    assert to.read_bytes() == BODY
    assert (seen[-1], sorted(seen)) == ((len(BODY), len(BODY)), seen)
    assert len(seen) >= 3
    model.write_bytes(b"another")
    await upload(model, f"{to.parent}/")
    assert to.read_bytes() == b"another"
    assert list(to.parent.iterdir()) == [to]


async def test_a_folder_keeps_its_paths(results: Path, store: Store, tmp_path: Path) -> None:
    for url in (f"{tmp_path}/out", f"file://{tmp_path}/o%20ut/", f"http://{store.url}/bucket/?token={SECRET}"):
        done = await upload(results, url, limits=PATIENT)
        assert len(done) == 2
        assert SECRET not in str(done)
    for out in (tmp_path / "out", tmp_path / "o ut"):
        names = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert names == {"a b/ä#1.txt": b"one", "two.txt": b""}
    assert store.objects == {"/bucket/a b/ä#1.txt": b"one", "/bucket/two.txt": b""}
    assert store.requests[0].query["token"] == SECRET


async def test_http_is_sent_by_put_and_what_may_pass_is_tried_again(model: Path, store: Store) -> None:
    store.statuses = [503, 429]
    with structlog.testing.capture_logs() as logs:
        (done,) = await upload(model, f"http://u:{SECRET}@{store.url}/m.onnx", limits=PATIENT, patience_s=30)
    assert done == Uploaded(f"http://***@{store.url}/m.onnx", len(BODY), DIGEST)
    assert store.objects == {"/m.onnx": BODY}
    assert [r.headers["Authorization"] for r in store.requests] == [encode_basic_auth("u", SECRET)] * 3
    assert SECRET not in str(logs)


@pytest.mark.parametrize(
    ("status", "reason", "temporary"),
    [
        (307, FetchReason.HTTP_STATUS, False),
        (401, FetchReason.ACCESS_DENIED, False),
        (403, FetchReason.ACCESS_DENIED, False),
        (404, FetchReason.HTTP_STATUS, False),
        (413, FetchReason.TOO_LARGE, False),
        (500, FetchReason.HTTP_STATUS, True),
    ],
)
async def test_http_refusals(status: int, reason: FetchReason, temporary: bool, model: Path, store: Store) -> None:
    store.statuses = [status]
    error = await failure(model, f"http://u:{SECRET}@{store.url}/m?t={SECRET}")
    assert (error.reason, error.temporary) == (reason, temporary)
    assert len(store.requests) == 1


async def test_a_server_that_has_other_content_is_not_believed(model: Path, store: Store) -> None:
    store.says = f"sha-256=:{sha256(b'another')}:"
    assert (await failure(model, f"http://{store.url}/m")).reason is FetchReason.DIGEST_MISMATCH
    store.says = f"sha-256=:{sha256(BODY)}:"
    await upload(model, f"http://{store.url}/m", limits=PATIENT)


async def test_servers_that_are_away_or_silent(model: Path, store: Store) -> None:
    assert (await failure(model, "http://127.0.0.1:9/m")).reason is FetchReason.UNREACHABLE
    store.pause = 30
    limits = TransferLimits(connect_s=5, inactivity_s=0.5, total_s=20)
    assert (await failure(model, f"http://{store.url}/m", limits=limits)).reason is FetchReason.TIMEOUT


async def test_a_policy_judges_the_address(model: Path, store: Store) -> None:
    error = await failure(model, f"http://{store.url}/m", policy=AddressPolicy())
    assert (error.reason, store.requests) == (FetchReason.FORBIDDEN_ADDRESS, [])
    await upload(model, f"http://{store.url}/m", limits=PATIENT, policy=AddressPolicy.parse("loopback"))


async def test_a_file_that_changes_on_its_way_does_not_arrive(tmp_path: Path) -> None:
    path, to = tmp_path / "in", tmp_path / "out"
    path.write_bytes(BIG)

    def meddle(sent: int, whole: int) -> None:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")

    path.write_bytes(BIG[:-1] + b"y")
    error = await failure(path, str(to), progress=meddle)
    assert (error.reason, error.temporary) == (FetchReason.INTERRUPTED, True)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("file", "url", "reason"),
    [
        ("model.onnx", "ftp://x/y", FetchReason.UNSUPPORTED_SCHEME),
        ("model.onnx", "relative", FetchReason.UNSUPPORTED_SCHEME),
        ("model.onnx", "s3://b", FetchReason.INVALID_URL),
        ("model.onnx", "FOLDER/model.onnx/below", FetchReason.NOT_WRITABLE),
        ("nothing", "/x", FetchReason.NOT_FOUND),
        ("empty", "/x", FetchReason.NOT_FOUND),
    ],
)
async def test_what_cannot_be_sent(file: str, url: str, reason: FetchReason, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (await failure(tmp_path / file, url.replace("FOLDER", str(tmp_path)))).reason is reason
    assert (await failure(model, "/x", limits=TransferLimits(max_bytes=10))).reason is FetchReason.TOO_LARGE


@pytest.fixture
def s3(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    enter(environment_of(store.url), monkeypatch)
    return store


async def test_s3_in_one_piece(model: Path, s3: Store) -> None:
    (done,) = await upload(model, "s3://models/a/m.onnx", limits=PATIENT)
    assert done == Uploaded("s3://models/a/m.onnx", len(BODY), DIGEST)
    assert s3.objects == {"/models/a/m.onnx": BODY}
    assert s3.requests[0].headers["x-amz-meta-sha256"] == DIGEST
    assert s3.requests[0].headers["x-amz-checksum-sha256"] == sha256(BODY)


async def test_s3_in_parts(tmp_path: Path, s3: Store) -> None:
    (tmp_path / "big").write_bytes(BIG)
    await upload(tmp_path / "big", "s3://models/", limits=PATIENT)
    assert s3.objects == {"/models/big": BIG}
    parts = [r for r in s3.requests if "partNumber" in r.query]
    assert [len(parts), all("x-amz-checksum-sha256" in r.headers for r in parts)] == [3, True]


async def test_s3_refusals(model: Path, s3: Store) -> None:
    reasons = {403: FetchReason.ACCESS_DENIED, 404: FetchReason.NOT_FOUND, 500: FetchReason.UNREACHABLE}
    for status, reason in reasons.items():
        s3.statuses = [status] * 3
        assert (await failure(model, "s3://models/m")).reason is reason
