"""A server that asks for a token, over TLS: REST and gRPC, and the mistakes of its files."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import aiohttp
import grpc
import pytest

from halimede.errors import InvalidFieldError
from halimede.serving.grpc_handlers import SERVICE
from halimede.serving.server_access import ServerAccess, read_access
from tests.serving_world import START_S, adds, server
from tests.waiting import eventually

TOKEN = "0123456789abcdef"
BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """A token, a certificate and its key."""
    token, certificate, key = tmp_path / "token", tmp_path / "tls.crt", tmp_path / "tls.key"
    token.write_text(f"{TOKEN}\n")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    token.chmod(0o600)
    key.chmod(0o600)
    return str(token), str(certificate), str(key)


async def test_only_who_shows_the_token_is_answered_and_health_is_open(
    tmp_path: Path, files: tuple[str, str, str]
) -> None:
    token, certificate, key = files
    options = ("--token-file", token, "--tls-cert", certificate, "--tls-key", key)
    trusted = ssl.create_default_context(cafile=certificate)
    right = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        server(tmp_path / "s", f"m={adds(tmp_path / 'm.onnx', 1)}", *options) as made,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session,
    ):
        assert made.http.startswith("https://")
        for path in ("/healthz", "/v2/health/live"):
            async with session.get(made.http + path) as answer:
                assert answer.status == 200

        async def is_ready() -> bool:
            async with session.get(f"{made.http}/v2/health/ready") as answer:
                return answer.status == 200

        await eventually(is_ready, START_S, 0.1)
        infer = f"{made.http}/v2/models/m/infer"
        for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
            for request in (session.get(f"{made.http}/metrics", headers=headers), session.post(infer, headers=headers)):
                async with request as answer:
                    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
                    assert "Bearer TOKEN" in (await answer.json())["error"]
        async with session.get(f"{made.http}/metrics", headers=right) as answer:
            assert answer.status == 200
        async with session.post(infer, headers=right, json=BODY) as answer:
            assert (await answer.json())["outputs"][0]["data"] == [2, 3]
        credentials = grpc.ssl_channel_credentials(Path(certificate).read_bytes())
        async with grpc.aio.secure_channel(made.grpc, credentials) as channel:
            assert await channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=10) == b"\x08\x01"
            for method in ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(f"/{SERVICE}/{method}")(b"", timeout=10)
                assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            shown = (("authorization", f"Bearer {TOKEN}"),)
            assert await channel.unary_unary(f"/{SERVICE}/ServerMetadata")(b"", metadata=shown, timeout=10)
        assert TOKEN not in made.log.read_text()


def test_tls_is_of_version_1_2_at_least(files: tuple[str, str, str]) -> None:
    assert read_access(*files).tls.minimum_version is ssl.TLSVersion.TLSv1_2


def test_mistakes_name_the_option_and_what_to_do(tmp_path: Path, files: tuple[str, str, str]) -> None:
    token, certificate, key = files
    empty, short, open_ = tmp_path / "empty", tmp_path / "short", tmp_path / "open"
    for file, text in ((empty, ""), (short, "abc"), (open_, TOKEN)):
        file.write_text(text)
        file.chmod(0o600)
    open_.chmod(0o644)
    for given, what in (
        ((str(tmp_path / "none"), "", ""), "No such file"),
        ((str(empty), "", ""), "it is empty"),
        ((str(short), "", ""), "16 or more"),
        ((str(open_), "", ""), "chmod o="),
        (("", "", "", "short"), "16 or more"),
        (("", certificate, ""), "--tls-key"),
        (("", key, certificate), "chmod o="),
        (("", token, key), "as PEM"),
    ):
        with pytest.raises(InvalidFieldError, match=what):
            read_access(*given)
    assert read_access("", "", "") == ServerAccess()
    assert read_access(token, "", "").is_admitted(f"Bearer {TOKEN}")
