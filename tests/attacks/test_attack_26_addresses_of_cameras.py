"""Attack 26: a manifest's `source.url` to loopback, to a metadata service, or by a redirect: not connected to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.cameras.relay import REDIRECT, CameraRelay
from halimede.messages import CameraStatus
from halimede.models.address_policy import VARIABLE, AddressPolicy
from tests.cameras import Camera, MjpegCamera, RtspCamera, counting
from tests.inbox import Inbox
from tests.kubernetes.pki import server_context
from tests.simulated import eventually
from tests.unit.worker.world import world
from tests.waiting import patience

PATIENCE_S = 30.0
pytestmark = pytest.mark.timeout(120)


@contextlib.asynccontextmanager
async def status_of(folder: Path, url: str) -> AsyncIterator[Inbox[CameraStatus]]:
    """Run an edge worker that reads ``url``; yield what it says of its camera."""
    statuses: Inbox[CameraStatus] = Inbox()
    async with world(folder) as site:
        await site.camera.subscribe(topics.NODE_CAMERA_STATUS.filter(), statuses)
        async with site.worker("edge", "e0", source=FrameSourceSpec(url=f"{url}#door")):
            yield statuses


async def refused(statuses: Inbox[CameraStatus]) -> CameraStatus:
    await eventually(lambda: "Forbidden" in statuses.read(lambda s: s.reason), PATIENCE_S)
    return next(s for s in statuses.bodies if s.reason == "Forbidden")


@pytest.mark.parametrize("kind", [MjpegCamera, RtspCamera])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"])
async def test_attack_26_a_camera_on_loopback_is_not_connected_to(
    kind: type[Camera], host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    async with kind(counting()) as camera:
        async with status_of(tmp_path, camera.url().replace("127.0.0.1", host)) as statuses:
            status = await refused(statuses)
            assert (status.state, status.frames) == ("failed", 0)
        assert camera.connections == 0


class RedirectingCamera(Camera):
    """Sends everybody elsewhere, in one write or byte by byte."""

    def __init__(self, scheme: str, to: str, *, piecemeal: bool = False) -> None:
        super().__init__(counting())
        self.scheme, self._to, self._piecemeal = scheme, to, piecemeal

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        number = head.partition("cseq:")[2].split("\r\n")[0].strip()
        protocol = "HTTP/1.1" if self.scheme == "http" else "RTSP/1.0"
        answer = f"{protocol} 302 Found\r\nCSeq: {number}\r\nLocation: {self._to}\r\nContent-Length: 0\r\n\r\n".encode()
        for piece in [answer[i : i + 1] for i in range(len(answer))] if self._piecemeal else [answer]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        await reader.read()


@pytest.mark.parametrize("piecemeal", [False, True])
@pytest.mark.parametrize("kind", [MjpegCamera, RtspCamera])
async def test_attack_26_a_camera_that_redirects_is_not_followed(
    kind: type[Camera], piecemeal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's address is allowed, and nothing but it."""
    monkeypatch.setenv(VARIABLE, "127.0.0.1")
    async with kind(counting()) as hidden:
        camera = RedirectingCamera(hidden.scheme, hidden.url(), piecemeal=piecemeal)
        async with camera, status_of(tmp_path, camera.url()) as statuses:
            status = await refused(statuses)
            assert "redirects" in status.error
        assert camera.connections > 0
        assert hidden.connections == 0


@pytest.mark.parametrize("kind", [MjpegCamera, RtspCamera])
async def test_attack_26_what_the_operator_allows_is_read(
    kind: type[Camera], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "loopback")
    async with kind(counting()) as camera, status_of(tmp_path, camera.url()) as statuses:
        await eventually(lambda: any(s.frames >= 5 for s in statuses.bodies), PATIENCE_S)


REDIRECTS = [b"RTSP/1.0 302 Found", b"RTSP/2.0  \t0301", b"RTSP/ +305 x", b"HTTP/1.1 307"]


@pytest.mark.parametrize("line", [*REDIRECTS, b"RTSP/1.0 200 OK", b"RTSP/1.0 3020", b"RTSP/1.0 404 300"])
def test_attack_26_a_redirect_is_recognized_as_ffmpeg_does(line: bytes) -> None:
    assert bool(REDIRECT.search(b"x\n" + line + b"\n")) is (line in REDIRECTS)


@pytest.mark.parametrize(("allowed", "reached"), [("127.0.0.1", True), ("127.0.0.2", False)])
async def test_attack_26_a_camera_behind_tls_is_judged_as_well(allowed: str, reached: bool, tmp_path: Path) -> None:
    """FFmpeg speaks plainly to the relay, which speaks TLS to the camera."""
    context, _ = server_context(tmp_path)
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"RTSP/1.0 200 OK\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        relay = CameraRelay(f"rtsps://me:secret@localhost:{port}/1", AddressPolicy.parse(allowed), 10.0)
        target = urlsplit(relay.start())
        assert (target.scheme, target.username, target.hostname) == ("rtsp", "me", "127.0.0.1")
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        writer.write(b"OPTIONS * RTSP/1.0\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await asyncio.wait_for(reader.read(4096), patience(PATIENCE_S))
        writer.close()
    assert (answer.startswith(b"RTSP/1.0 200"), bool(asked)) == (reached, reached)
    assert bool(relay.error) is not reached
    assert "secret" not in str(relay.error)
