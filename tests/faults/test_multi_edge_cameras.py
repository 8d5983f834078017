"""Cameras that fail in every way: their status says so, nobody else notices, and they come back by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest

from halimede.cameras.frame_rate import MOST_FPS
from services.broker import MosquittoProcess
from tests.camera_world import PATIENCE_S, Seen, cameras
from tests.cameras import PASSWORD, USER, Camera, MjpegCamera, RtspCamera, Viewer, counting, jpeg, number_of
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Output = pytest.CaptureFixture[str]


Pair = Callable[..., AbstractAsyncContextManager[Seen]]


@pytest.fixture
def pair(mosquitto: MosquittoProcess, unique: str) -> Pair:
    """Return what runs a bad camera beside a good one, with these settings."""

    @contextlib.asynccontextmanager
    async def run(bad: Camera, good: type[Camera] = MjpegCamera, **settings: float) -> AsyncIterator[Seen]:
        async with (
            bad,
            good(counting()) as other,
            cameras(mosquitto, unique, {"bad": bad.url(), "good": other.url()}, **settings) as seen,
        ):
            yield seen

    return run


async def goes_on(seen: Seen) -> None:
    """The camera beside it is as well as ever."""
    await seen.more("good")
    assert seen.last("good").state in {"running", "connecting"}
    assert not [s for s in seen.said["good"] if s.state not in {"running", "connecting"} or s.reconnects]


async def test_a_camera_that_stalls_is_opened_again(pair: Pair) -> None:
    stalled = asyncio.Event()

    async def stall_once(viewer: Viewer) -> None:
        for number in range(8):
            await viewer.picture(jpeg(number))
            await asyncio.sleep(0.02)
        if not stalled.is_set():
            stalled.set()
            await asyncio.sleep(3600)
        await counting()(viewer)

    async with pair(MjpegCamera(stall_once), RtspCamera) as seen:
        said = await seen.says("bad", state="stalled")
        assert (said.reason, said.error) == ("Stalled", "nothing that can be used came from it in time")
        await goes_on(seen)
        await seen.more("bad", 20)
        assert (await seen.says("bad", state="running", reconnects=1)).error == ""


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        ("parts of noise", {}, "jpeg"),
        ("a stream of noise", {}, "video"),
        ("too large frames", {"max_bytes": 4000}, "is more than 4000"),
    ],
)
async def test_a_camera_that_sends_garbage(pair: Pair, kind: str, settings: dict[str, float], error: str) -> None:
    large = jpeg(3, 1024, 768)

    async def garbage(viewer: Viewer) -> None:
        while True:
            noise = b"\xff\xd8\xff" + os.urandom(2000)
            if kind == "a stream of noise":
                await viewer.bytes(noise)
            else:
                await viewer.picture(noise if kind == "parts of noise" else large)
            await asyncio.sleep(0.01)

    async with pair(MjpegCamera(garbage), **settings) as seen:
        assert error in (await seen.says("bad", state="failed", reason="Garbage")).error
        await goes_on(seen)
        await eventually(lambda: seen.last("bad").reconnects > 0, PATIENCE_S)
    assert not seen.frames["bad"]


async def test_a_camera_that_changes_its_resolution(pair: Pair) -> None:
    small = asyncio.Event()

    async def grow(viewer: Viewer) -> None:
        while not small.is_set():
            await viewer.picture(jpeg(3))
            await asyncio.sleep(0.05)
        await counting(size=(128, 96))(viewer)

    async with pair(RtspCamera(grow), RtspCamera) as seen:
        await seen.says("bad", width=64, height=48)
        small.set()
        said = await seen.says("bad", state="running", width=128, height=96)
        assert said.reconnects == 0
        await goes_on(seen)
        await seen.more("bad")
    assert number_of(bytes(seen.frames["bad"][-1].data)) in range(16)


async def test_a_camera_that_wants_another_password_and_nothing_shows_ours(
    mosquitto: MosquittoProcess, unique: str, capfd: Output
) -> None:
    wrong = f"{USER}:Wr0ng-Passw0rd"
    async with (
        RtspCamera(counting(), password=PASSWORD) as bad,
        MjpegCamera(counting(), password=PASSWORD) as other,
        MjpegCamera(counting(), password=PASSWORD) as good,
        cameras(
            mosquitto,
            unique,
            {"bad": bad.url(wrong), "other": other.url(wrong), "good": good.url(f"{USER}:{PASSWORD}")},
        ) as seen,
    ):
        await seen.more("good", 3)
        lines = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one of those that are refused
                lines += [" ".join(child.cmdline()), str(child.environ())]
        assert any("halimede.cameras.reader_process" in line for line in lines)
        for name, camera in (("bad", bad), ("other", other)):
            said = await seen.says(name, state="failed", reason="Unauthorized")
            assert said.source == f"{camera.scheme}://***@127.0.0.1:{camera.port}/stream"
            assert "check user and password" in said.error
        await goes_on(seen)
    shown = [repr(s) for each in seen.said.values() for s in each]
    everything = "\n".join([*lines, *shown, *capfd.readouterr()])
    assert "Unauthorized" in everything
    assert not [secret for secret in ("Wr0ng-Passw0rd", PASSWORD, f"{USER}:") if secret in everything]


async def test_a_camera_that_floods_is_held_back(pair: Pair) -> None:
    pictures = [jpeg(number, 640, 480) for number in range(16)]
    sent = 0

    async def held_back() -> bool:
        before = sent
        await asyncio.sleep(1.0)
        return sent - before < 1.5 * MOST_FPS  # once what lies between the two is full

    async def flood(viewer: Viewer) -> None:
        nonlocal sent
        while True:
            await viewer.picture(pictures[sent % 16])
            sent += 1
            await asyncio.sleep(0)

    async with pair(MjpegCamera(flood), fps=30.0) as seen:
        said = await seen.says("bad", state="running", reason="Flood")
        assert "lower its rate" in said.error
        await goes_on(seen)
        await seen.more("bad", 60)
        assert seen.last("bad").fps < 60
        await eventually(held_back, PATIENCE_S)


async def test_a_reader_that_dies_takes_nobody_along(pair: Pair) -> None:
    async with pair(bad := MjpegCamera(counting())) as seen:
        await seen.more("bad")
        await seen.more("good")
        doomed, _ = sorted(
            (c for c in psutil.Process().children() if "halimede.cameras.reader_process" in c.cmdline()),
            key=lambda child: all(peer.raddr and peer.raddr.port != bad.port for peer in child.net_connections()),
        )
        os.kill(doomed.pid, signal.SIGSEGV)
        said = await seen.says("bad", state="failed")
        assert (said.reason, "SIGSEGV" in said.error) == ("Crashed", True)
        await seen.says("bad", state="running", reconnects=1)
        await goes_on(seen)


async def test_a_file_that_names_other_places_leads_nowhere(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    (tmp_path / "secret.jpg").write_bytes(jpeg(1))
    async with MjpegCamera(counting()) as inside:
        list_ = (
            f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{inside.url()}\n#EXTINF:5,\nfile:{tmp_path}/secret.jpg\n"
        )
        (tmp_path / "list.mp4").write_text(list_)
        (tmp_path / "concat.mp4").write_text(f"ffconcat version 1.0\nfile {tmp_path}/secret.jpg\n")
        urls = {"a": str(tmp_path / "list.mp4"), "b": str(tmp_path / "concat.mp4"), "c": "/dev/video99"}
        async with cameras(mosquitto, unique, urls) as seen:
            for name, reason in (("a", "Garbage"), ("b", "Garbage"), ("c", "NotFound")):
                assert (await seen.says(name, state="failed")).reason == reason
        assert inside.connections == 0
    assert not seen.frames
