"""The fetcher against real files and a real HTTP server."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import structlog

from halimede.errors import InvalidFieldError
from halimede.models import Cache, FetchError, FetchReason, TransferLimits, TransferRate, fetch, probe, redact
from tests.origins import Handler, Origin, redirect
from tests.ports import free_port
from tests.unit.models.archives import refusal
from tests.unit.models.s3_world import BODY, DIGEST

QUICK = TransferLimits(connect_s=5, inactivity_s=1, total_s=20, max_bytes=10_000_000)


def endless(handler: Handler) -> NoReturn:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(1_000_000))


def silent(handler: Handler) -> NoReturn:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"a beginning")
    handler.rfile.read(1)  # until the client has gone
    raise BrokenPipeError


def broken(handler: Handler) -> NoReturn:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"a beginning")
    raise BrokenPipeError


@pytest.fixture
def origin(origin: Origin) -> Origin:
    for name, answer in {"endless": endless, "silent": silent, "broken": broken, "loop": redirect("/loop")}.items():
        origin.answers |= {f"/{name}": answer, f"/{name}?token=hunter2": answer}
    return origin


def model_file(folder: Path, body: bytes = BODY) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(body)
    return path


def leftovers(cache: Cache) -> list[Path]:
    return list((cache.root / "parts").glob("*"))


async def failure(url: str, cache: Cache, sha256: str = "", limits: TransferLimits = QUICK) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetch(url, sha256, cache, limits=limits)
    assert leftovers(cache) == []
    assert list((cache.root / "sha256").glob("*")) == []
    return caught.value


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
async def test_a_local_file_is_copied_to_its_digest(form: str, tmp_path: Path, cache: Cache) -> None:
    fetched = await fetch(form.format(model_file(tmp_path)), DIGEST, cache)
    assert fetched.path == cache.root / "sha256" / DIGEST
    assert (fetched.digest, fetched.size, fetched.fresh) == (DIGEST, len(BODY), True)
    assert fetched.path.read_bytes() == BODY
    assert leftovers(cache) == []


async def test_http_brings_the_same_and_tells_its_progress(origin: Origin, cache: Cache) -> None:
    seen: list[tuple[int, int | None]] = []
    fetched = await fetch(f"{origin.url}/model", DIGEST, cache, lambda *at: seen.append(at))
    assert fetched.path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)


async def test_content_known_by_digest_is_never_asked_for_again(origin: Origin, cache: Cache) -> None:
    for _ in range(3):
        await fetch(f"{origin.url}/model", DIGEST, cache)
    await fetch("http://192.0.2.1/elsewhere", DIGEST, cache)
    assert len(origin.asked) == 1


async def test_without_digest_the_origin_is_asked_and_unchanged_content_is_not_sent_again(
    origin: Origin, cache: Cache
) -> None:
    first = await fetch(f"{origin.url}/model", "", cache)
    again = await fetch(f"{origin.url}/model", "", cache)
    assert first == again
    assert [r.headers.get("If-None-Match") for r in origin.asked] == [None, '"1"']

    origin.body, origin.etag = b"a new model", '"2"'
    assert (await fetch(f"{origin.url}/model", "", cache)).path.read_bytes() == b"a new model"


async def test_an_origin_without_etag_is_read_each_time(origin: Origin, cache: Cache) -> None:
    origin.etag = ""
    await fetch(f"{origin.url}/model", "", cache)
    origin.body = b"a new model"
    assert (await fetch(f"{origin.url}/model", "", cache)).path.read_bytes() == b"a new model"


async def test_a_changed_local_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path, cache: Cache) -> None:
    path, reads = model_file(tmp_path), []
    await fetch(str(path), "", cache)
    await fetch(str(path), "", cache, lambda *at: reads.append(at))
    assert reads == []
    path.write_bytes(b"a new model")
    assert (await fetch(str(path), "", cache)).path.read_bytes() == b"a new model"


@pytest.mark.parametrize("etag", ['"1"', ""])
@pytest.mark.parametrize("status", [500, 503, 429, 404, 410])
async def test_an_origin_that_cannot_answer_does_not_take_the_cached_model_away(
    status: int, etag: str, origin: Origin, cache: Cache
) -> None:
    origin.etag = etag
    await fetch(f"{origin.url}/model", "", cache)
    origin.status = status
    fetched = await fetch(f"{origin.url}/model", "", cache)
    assert (fetched.digest, fetched.fresh) == (DIGEST, False)


@pytest.mark.parametrize("status", [401, 403])
async def test_an_origin_that_refuses_takes_the_cached_model_away(status: int, origin: Origin, cache: Cache) -> None:
    await fetch(f"{origin.url}/model", "", cache)
    origin.status = status
    with pytest.raises(FetchError, match=str(status)):
        await fetch(f"{origin.url}/model", "", cache)


async def test_a_local_file_that_was_removed_is_still_in_the_cache(tmp_path: Path, cache: Cache) -> None:
    path = model_file(tmp_path)
    await fetch(str(path), "", cache)
    path.unlink()
    fetched = await fetch(str(path), "", cache)
    assert (fetched.digest, fetched.fresh) == (DIGEST, False)
    with pytest.raises(FetchError, match="does not exist"):
        await fetch(str(path), "0" * 64, cache)


async def test_an_origin_whose_etag_went_away_is_known_by_what_it_gave_last(origin: Origin, cache: Cache) -> None:
    await fetch(f"{origin.url}/model", "", cache)
    origin.body, origin.etag = b"a new model", ""
    await fetch(f"{origin.url}/model", "", cache)
    origin.status = 503
    assert (await fetch(f"{origin.url}/model", "", cache)).path.read_bytes() == b"a new model"


async def test_a_wrong_digest_is_refused_and_nothing_is_kept(origin: Origin, tmp_path: Path, cache: Cache) -> None:
    for url in (f"{origin.url}/model", str(model_file(tmp_path))):
        error = await failure(url, cache, "0" * 64)
        assert (error.reason, error.temporary) == (FetchReason.DIGEST_MISMATCH, False)
        assert DIGEST in str(error)


async def test_a_malformed_digest_is_a_mistake_in_that_field(cache: Cache) -> None:
    with pytest.raises(InvalidFieldError, match="sha256"):
        await fetch("/model", "../../etc/passwd", cache)


@pytest.mark.parametrize(
    ("name", "reason", "temporary"),
    [
        ("missing", FetchReason.NOT_FOUND, False),
        ("model.onnx/below", FetchReason.NOT_FOUND, False),
        ("folder", FetchReason.NOT_A_FILE, False),
        ("pipe", FetchReason.NOT_A_FILE, False),
        ("empty", FetchReason.EMPTY_FILE, False),
        ("large", FetchReason.TOO_LARGE, False),
    ],
)
async def test_local_files_that_are_no_model(
    name: str, reason: FetchReason, temporary: bool, tmp_path: Path, cache: Cache
) -> None:
    model_file(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    os.truncate(os.open(tmp_path / "large", os.O_CREAT | os.O_WRONLY), QUICK.max_bytes + 1)
    error = await failure(str(tmp_path / name), cache)
    assert (error.reason, error.temporary) == (reason, temporary)
    assert str(tmp_path / name) in str(error)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://host/model", FetchReason.UNSUPPORTED_SCHEME),
        ("models/small.onnx", FetchReason.INVALID_URL),
        ("file://other-host/model", FetchReason.INVALID_URL),
        ("file:model", FetchReason.INVALID_URL),
        ("file:///a%00b", FetchReason.INVALID_URL),
        ("http://[::1/model", FetchReason.INVALID_URL),
        ("http:///model", FetchReason.INVALID_URL),
        ("http://127.0.0.1:1/model", FetchReason.UNREACHABLE),
    ],
)
async def test_urls_that_nothing_is_fetched_from(url: str, reason: FetchReason, cache: Cache) -> None:
    error = await failure(url, cache)
    assert (error.reason, error.temporary) == (reason, reason is FetchReason.UNREACHABLE)


@pytest.mark.parametrize(
    ("path", "status", "reason", "temporary"),
    [
        ("model", 404, FetchReason.NOT_FOUND, False),
        ("model", 401, FetchReason.HTTP_STATUS, False),
        ("model", 403, FetchReason.HTTP_STATUS, False),
        ("model", 429, FetchReason.HTTP_STATUS, True),
        ("model", 503, FetchReason.HTTP_STATUS, True),
        ("endless", 200, FetchReason.TOO_LARGE, False),
        ("silent", 200, FetchReason.TIMEOUT, True),
        ("broken", 200, FetchReason.INTERRUPTED, True),
        ("loop", 200, FetchReason.HTTP_STATUS, False),
    ],
)
async def test_what_a_server_does_not_deliver_has_its_reason(  # noqa: PLR0917 - the columns, and fixtures
    path: str, status: int, reason: FetchReason, temporary: bool, origin: Origin, cache: Cache
) -> None:
    origin.status = status
    error = await failure(f"{origin.url}/{path}", cache)
    assert (error.reason, error.temporary) == (reason, temporary)
    assert status == 200 or str(status) in str(error)
    assert "Error" not in str(error)


async def test_the_total_time_is_bounded(origin: Origin, cache: Cache) -> None:
    limits = replace(QUICK, inactivity_s=60, total_s=0.3)
    assert (await failure(f"{origin.url}/silent", cache, limits=limits)).reason is FetchReason.TIMEOUT


async def test_an_empty_body_is_refused(origin: Origin, cache: Cache) -> None:
    origin.body = b""
    assert (await failure(f"{origin.url}/model", cache)).reason is FetchReason.EMPTY_FILE


@pytest.mark.parametrize("path", ["model", "endless", "silent", "broken", "loop"])
async def test_no_error_and_no_log_line_shows_a_secret(path: str, origin: Origin, cache: Cache) -> None:
    url = origin.url.replace("http://", "http://user:hunter2@") + f"/{path}?token=hunter2"
    origin.status = 403
    with structlog.testing.capture_logs() as logs:
        error = await failure(url, cache)
        origin.status = 200
        if path == "model":
            await fetch(url, "", cache)
            origin.status = 500
            await fetch(url, "", cache)
            assert len(logs) == 2
    assert "hunter2" not in str(error) + str(logs)
    assert error.__cause__ is None
    assert not any(b"hunter2" in f.read_bytes() for f in cache.root.rglob("*.json"))


def test_redacted_urls_keep_what_is_no_secret() -> None:
    assert redact("https://u:p@host:8443/a/b?X-Signature=s#f") == "https://***@host:8443/a/b?***"
    assert redact("/models/small.onnx") == "/models/small.onnx"
    assert redact("http://[::1/u:p") == "<unreadable URL>"


async def test_a_cached_file_that_was_tampered_with_is_fetched_again(tmp_path: Path, cache: Cache) -> None:
    url = str(model_file(tmp_path))
    fetched = await fetch(url, DIGEST, cache)
    fetched.path.chmod(0o600)
    fetched.path.write_bytes(b"something else")
    assert (await fetch(url, DIGEST, cache)).path.read_bytes() == BODY


async def test_a_lost_or_damaged_index_costs_no_more_than_a_look(tmp_path: Path, cache: Cache) -> None:
    url = str(model_file(tmp_path))
    await fetch(url, "", cache)
    for file in (cache.root / "index").iterdir():
        file.write_bytes(b"{")
    assert (await fetch(url, "", cache)).digest == DIGEST
    assert (await fetch("/gone", DIGEST, cache)).digest == DIGEST


async def test_what_a_killed_download_left_is_written_over(tmp_path: Path, cache: Cache) -> None:
    (cache.root / "parts").mkdir(parents=True)
    (cache.root / "parts" / DIGEST).write_bytes(b"half a model" * 1_000_000)
    fetched = await fetch(str(model_file(tmp_path)), DIGEST, cache)
    assert fetched.path.read_bytes() == BODY
    assert leftovers(cache) == []


async def test_many_tasks_download_one_model_once(origin: Origin, cache: Cache) -> None:
    url = f"{origin.url}/model"
    fetched = await asyncio.gather(*(fetch(url, DIGEST, cache) for _ in range(8)))
    assert len(set(fetched)) == 1
    assert len(origin.asked) == 1


async def test_two_processes_download_one_model_once(origin: Origin, cache: Cache) -> None:
    code = (
        "import asyncio, pathlib, sys; from halimede.models import *;"
        "print(asyncio.run(fetch(sys.argv[1], sys.argv[2], Cache(pathlib.Path(sys.argv[3])))).digest)"
    )
    command = [sys.executable, "-c", code, f"{origin.url}/model", DIGEST, str(cache.root)]
    children = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [(await child.communicate())[0].decode().split()[-1] for child in children]
    assert outputs == [DIGEST, DIGEST]
    assert len(origin.asked) == 1


async def test_a_lock_that_is_never_released_has_a_deadline(cache: Cache) -> None:
    async with cache.lock(DIGEST, 1):
        refused = await refusal(fetch("/anything", DIGEST, cache, limits=replace(QUICK, total_s=0.2)))
        assert refused == (FetchReason.TIMEOUT, True)


async def test_a_cache_that_cannot_be_written_is_temporary(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    refused = await refusal(fetch(str(model_file(tmp_path)), "", Cache(tmp_path / "cache")))
    assert refused == (FetchReason.CACHE_FAILED, True)


async def test_a_url_is_probed_without_its_content(origin: Origin) -> None:
    await probe(f"{origin.url}/endless")
    origin.status = 404
    for at, reason, temporary in (
        (f"{origin.url}/model", FetchReason.NOT_FOUND, False),
        (f"http://127.0.0.1:{free_port()}/model", FetchReason.UNREACHABLE, True),
        ("hdfs://host/data", FetchReason.UNSUPPORTED_SCHEME, False),
    ):
        assert await refusal(probe(at)) == (reason, temporary)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
@pytest.mark.parametrize("sha256", [DIGEST, ""], ids=["digest", "no digest"])
async def test_content_that_a_server_compresses_for_the_transfer_is_the_content(
    origin: Origin, cache: Cache, encoding: str, sha256: str
) -> None:
    """The digest is that of the model, whatever encoding the server chose; an unchanged one is not sent again."""
    origin.body, origin.headers = gzip.compress(BODY), {"Content-Encoding": encoding}
    for _ in range(2):
        fetched = await fetch(f"{origin.url}/model", sha256, cache, limits=QUICK)
        assert (fetched.digest, fetched.size) == (DIGEST, len(BODY))
    if not sha256:
        assert origin.asked[-1].headers["If-None-Match"] == 'W/"1"'


async def test_a_compressed_file_is_no_encoding_though_its_server_says_so(origin: Origin, tmp_path: Path) -> None:
    origin.body, origin.headers = gzip.compress(BODY), {"Content-Encoding": "x-gzip"}
    fetched = await fetch(f"{origin.url}/model.tar.gz", "", Cache(tmp_path), limits=QUICK)
    assert fetched.digest == hashlib.sha256(origin.body).hexdigest()


async def test_a_compressed_transfer_has_the_limits_of_its_content(origin: Origin, tmp_path: Path) -> None:
    origin.body, origin.headers = gzip.compress(bytes(QUICK.max_bytes + 1)), {"Content-Encoding": "gzip"}
    assert len(origin.body) < 100_000
    assert (await refusal(fetch(f"{origin.url}/model", "", Cache(tmp_path), limits=QUICK)))[0] is FetchReason.TOO_LARGE


@pytest.mark.parametrize("harm", ["cut", "changed"])
async def test_a_damaged_transfer_is_a_failure_that_passes(origin: Origin, tmp_path: Path, harm: str) -> None:
    whole = gzip.compress(BODY)
    origin.body = whole[:-9] if harm == "cut" else whole[:-6] + b"\0\0" + whole[-4:]
    origin.headers = {"Content-Encoding": "gzip"}
    refused = await refusal(fetch(f"{origin.url}/model", "", Cache(tmp_path), limits=QUICK), "no whole gzip")
    assert refused == (FetchReason.INTERRUPTED, True)


def test_speed_is_that_of_the_last_seconds() -> None:
    at = [0.0]
    speed = TransferRate(lambda: at[0])
    assert speed.update(5_000_000) == 0.0  # was here before
    for second in range(1, 21):
        at[0] = float(second)
        rate = speed.update(5_000_000 + second * 1000)
    assert rate == 1000.0
    for second in range(21, 41):
        at[0] = float(second)
        rate = speed.update(5_020_000 + (second - 20) * 50)
    assert rate == 50.0


def test_a_download_that_begins_anew_has_no_negative_speed() -> None:
    seconds = iter(range(4))
    speed = TransferRate(lambda: float(next(seconds)))
    assert [speed.update(size) for size in (1000, 2000, 0, 10)] == [0.0, 1000.0, 0.0, 10.0]
