"""Real cameras of every kind become cameras of the bus: newest frame first, JPEG as it is, a status that is true."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from halimede import codec, topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.mqtt import MqttBus
from halimede.cameras.address import parse
from halimede.cameras.camera import Camera
from halimede.cameras.ipc_messages import CapturedPicture
from halimede.cameras.publisher import CameraPublisher
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import size_of
from halimede.messages import CameraStatus
from services.broker import MosquittoProcess
from tests.camera_world import PATIENCE_S, cameras, watching
from tests.cameras import PASSWORD, USER, MjpegCamera, RtspCamera, Viewer, counting, cut_off, jpeg, number_of, video
from tests.inbox import Inbox
from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)


async def test_rtsp_goes_over_tcp_and_its_frames_say_when_they_were_taken(
    mosquitto: MosquittoProcess, unique: str
) -> None:
    def numbers() -> list[int]:
        return [number_of(bytes(frame.data)) for frame in seen.frames["door"]]

    async def show(viewer: Viewer) -> None:
        """Repeat each picture until it has arrived: a live camera skips pictures while the machine is busy."""
        for number in itertools.cycle(range(16)):
            while numbers()[-1:] != [number]:
                await viewer.picture(jpeg(number))
                await asyncio.sleep(0.04)

    async with RtspCamera(show) as camera, cameras(mosquitto, unique, {"door": camera.url()}) as seen:
        await eventually(lambda: 10 in numbers(), PATIENCE_S)
        said = await seen.says("door", state="running")
        assert camera.transports
        assert all("TCP" in transport for transport in camera.transports)
    frames = seen.frames["door"]
    assert [f.sequence for f in frames] == list(range(len(frames)))
    assert len({bytes(f.id) for f in frames}) == len(frames)
    assert {(f.camera, f.encoding) for f in frames} == {("door", "jpeg")}
    assert numbers()[0] == 0
    assert {(after - before) % 16 for before, after in pairwise(numbers())} <= {0, 1}, "in order"
    assert abs(frames[-1].captured_ns / 1e9 - time.time()) < PATIENCE_S
    assert [f.captured_ns for f in frames] == sorted(f.captured_ns for f in frames)
    assert (said.codec, said.width, said.height) == ("mjpeg", 64, 48)
    assert (await seen.says("door", state="stopped")).frames == len(frames)


async def test_mjpeg_over_http_is_passed_on_byte_for_byte(mosquitto: MosquittoProcess, unique: str) -> None:
    sent = {jpeg(number) for number in range(16)}
    async with (
        MjpegCamera(counting(), password=PASSWORD) as camera,
        cameras(mosquitto, unique, {"yard": camera.url(f"{USER}:{PASSWORD}")}) as seen,
    ):
        await seen.more("yard", 10)
    assert {bytes(f.data) for f in seen.frames["yard"]} <= sent


async def test_a_film_that_a_server_streams_ends_without_a_warning_and_is_opened_again(
    mosquitto: MosquittoProcess, unique: str
) -> None:
    async def film(viewer: Viewer) -> None:
        for number in range(5):
            await viewer.picture(jpeg(number))
            await asyncio.sleep(0.02)

    async with MjpegCamera(film) as camera, cameras(mosquitto, unique, {"film": camera.url()}) as seen:
        await seen.says("film", state="connecting", reason="Ended")
        await eventually(lambda: camera.connections >= 2, PATIENCE_S)
    assert not {said.state for said in seen.said["film"]} & {"failed", "stalled"}


async def test_a_film_that_has_been_played_leaves_no_warning(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    path = video(tmp_path / "a.avi", 5, codec="mjpeg")
    with capture_logs() as lines:
        async with cameras(mosquitto, unique, {"film": str(path)}) as seen:
            await seen.says("film", state="stopped", reason="Ended")
            await eventually(lambda: sum(line["event"] == "bus connected" for line in lines) >= 3, PATIENCE_S)
    assert [line for line in lines if line["log_level"] not in {"debug", "info"}] == []


@pytest.mark.slow
async def test_files_that_shall_begin_together_do_and_every_frame_of_them_leaves(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "8.jpg").write_bytes(b"no picture at all")
    urls = {
        "h264": str(video(tmp_path / "a.mp4", 30, size=(160, 120))),
        "mjpeg": str(video(tmp_path / "b.avi", 30, codec="mjpeg", size=(160, 120))),
        "folder": str(folder),
    }
    async with cameras(mosquitto, unique, urls, max_width=80) as seen:
        for name in urls:
            await seen.says(name, state="stopped", reason="Ended")
    for name, count in (("h264", 30), ("mjpeg", 30), ("folder", 8)):
        frames = seen.frames[name]
        assert [f.sequence for f in frames] == list(range(count))
        assert [number_of(bytes(f.data)) for f in frames] == [i % 16 for i in range(count)], name
        assert {b.captured_ns - a.captured_ns - 40_000_000 for a, b in pairwise(frames)} <= {-1, 0, 1}
    assert len({frames[0].captured_ns for frames in seen.frames.values()}) == 1
    assert (seen.last("h264").width, seen.last("h264").height, seen.last("h264").codec) == (80, 60, "h264")
    assert seen.last("folder").refused == 1


async def test_a_broken_keyframe_is_counted_and_the_film_goes_on(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    path = cut_off(video(tmp_path / "whole.mp4", 40, keys=12), tmp_path / "cut.mp4", 11)
    async with cameras(mosquitto, unique, {"film": str(path)}) as seen:
        status = await seen.says("film", state="stopped", reason="Ended")
    assert status.frames == len(seen.frames["film"])
    assert status.frames + status.refused == 40
    assert status.refused >= 1
    assert number_of(bytes(seen.frames["film"][-1].data)) == 39 % 16


async def test_a_film_may_change_its_size_and_each_frame_has_its_own(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    sizes = [(64, 48), (160, 120)]
    parts = [video(tmp_path / f"{width}.h264", 10, size=(width, height)) for width, height in sizes]
    film = tmp_path / "film.h264"
    film.write_bytes(b"".join(part.read_bytes() for part in parts))
    async with cameras(mosquitto, unique, {"film": str(film)}) as seen:
        await seen.says("film", state="stopped", reason="Ended", refused=0)
    assert [size_of(bytes(frame.data)) for frame in seen.frames["film"]] == [sizes[0]] * 10 + [sizes[1]] * 10


async def test_a_camera_that_wants_no_frames_of_ours_publishes_bare_jpeg(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    path = video(tmp_path / "a.avi", 5, codec="mjpeg")
    async with cameras(mosquitto, unique, {"old": str(path)}, bare=True, pace=0.0, plays=2) as seen:
        await seen.says("old", state="stopped")
    assert [number_of(data) for data in seen.bare["old"]] == [0, 1, 2, 3, 4] * 2


async def test_who_is_slow_gets_the_newest_frame_and_the_others_are_counted() -> None:
    taken: list[int] = []
    departures, stop = asyncio.Semaphore(0), asyncio.Event()

    async def slow(picture: CapturedPicture, sequence: int) -> bool:
        taken.append(number_of(picture.data))
        await departures.acquire()
        return True

    async def show(viewer: Viewer) -> None:
        """Show one picture, and seven more each time that the newest has been taken."""
        await viewer.picture(jpeg(0))
        for newest in (0, 7):
            await eventually(lambda newest=newest: taken[-1:] == [newest], PATIENCE_S)
            for number in range(newest + 1, newest + 8):
                await viewer.picture(jpeg(number))
        await stop.wait()

    async with MjpegCamera(show) as server:
        settings = CameraSettings(name="a", address=parse(server.url()), window=1, stall_s=patience(PATIENCE_S))
        camera = Camera(settings, slow)
        running = asyncio.create_task(camera.run(stop))
        for skipped in (6, 12):
            await eventually(lambda skipped=skipped: camera.tracker.skipped == skipped, PATIENCE_S)
            departures.release()
        await eventually(lambda: len(taken) == 3, PATIENCE_S)
        departures.release()
        stop.set()
        await running
    assert taken == [0, 7, 14], "none waits in a queue behind one that has not left"


async def test_fewer_frames_are_taken_where_fewer_are_wanted(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    path = video(tmp_path / "a.avi", 50, codec="mjpeg")
    async with cameras(mosquitto, unique, {"a": str(path)}, fps=5.0, pace=-1.0) as seen:
        said = await seen.says("a", state="stopped")
    assert (said.frames, said.skipped) == (10, 40)
    assert said.wanted_fps == 5.0
    assert [number_of(bytes(f.data)) for f in seen.frames["a"]] == [i % 16 for i in range(0, 50, 5)]


@contextlib.contextmanager
def process_of(broker: MosquittoProcess, namespace: str, camera: str, **variables: str) -> Iterator[psutil.Popen]:
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NAMESPACE": namespace, "HALIMEDE_BROKER": broker.url,
    }  # fmt: skip
    command = [sys.executable, "-m", "halimede", "camera", "--camera", camera]
    process = psutil.Popen(command, cwd=ROOT, env=environment | variables, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.slow
async def test_a_process_whose_frames_reached_nobody_ends_with_1_after_sigterm(
    mosquitto: MosquittoProcess, unique: str
) -> None:
    statuses: Inbox[CameraStatus] = Inbox()
    async with MjpegCamera(counting()) as door, MqttBus(unique, mosquitto.url) as bus:
        await bus.subscribe(topics.CAMERA_STATUS.filter(ns=unique), statuses)
        with process_of(mosquitto, unique, f"door={door.url()}") as process:
            await eventually(lambda: any(statuses.read(lambda status: status.frames)), PATIENCE_S)
            process.terminate()
            _, shown = await asyncio.to_thread(process.communicate, timeout=patience(PATIENCE_S))
    assert re.search(rb"halimede camera: \d+ frames of camera door had no subscriber", shown)
    assert process.returncode == 1


@pytest.mark.slow
async def test_the_process_ends_its_readers_and_its_will_says_that_it_is_gone(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    variables = {
        "NODE_NAME": "edge0", "SOURCE_USERNAME": USER, "SOURCE_PASSWORD": PASSWORD, "HALIMEDE_HTTP": "127.0.0.1:0",
    }  # fmt: skip
    camera = f"door=@{tmp_path / 'door'}"
    async with MjpegCamera(counting(), password=PASSWORD) as door, watching(mosquitto, unique) as seen:
        (tmp_path / "door").write_text(f"{door.url()}\n")
        with process_of(mosquitto, unique, camera, **variables) as first:
            await seen.more("door")
            assert (await seen.says("door", state="running")).node == "edge0"
            (reader,) = first.children()
            reader.suspend()  # it notices nothing itself
            first.kill()
            first.wait()
        assert (await seen.says("door", state="gone")).reason == "Gone"
        await eventually(lambda: not reader.is_running(), PATIENCE_S)
        with process_of(mosquitto, unique, camera, **variables) as second:
            await seen.more("door")
            second.terminate()
            await asyncio.to_thread(second.communicate, timeout=patience(PATIENCE_S))
            assert second.returncode == 0
        await seen.says("door", state="stopped")
        assert seen.last("door").state == "stopped"


@contextlib.asynccontextmanager
async def running(
    broker: MemoryBroker, url: str, *, patient: bool
) -> AsyncIterator[tuple[MemoryBus, Inbox[bytes], Camera, asyncio.Event]]:
    """Run a camera; yield its bus, what a worker gets of it, and what stops it."""
    inbox: Inbox[bytes] = Inbox()
    async with MemoryBus("worker", broker) as worker, MemoryBus("camera", broker) as bus:
        await worker.subscribe(topics.CAMERA_FRAME.filter(), inbox)
        await bus.wait_connected(patience(PATIENCE_S))
        stop = asyncio.Event()
        publisher = CameraPublisher(bus, "default", "a", qos=1, bare=False, patient=patient, stop=stop)
        camera = Camera(CameraSettings(name="a", address=parse(url)), publisher.take)
        task = asyncio.create_task(camera.run(stop))
        await eventually(lambda: len(inbox.deliveries) > 5, PATIENCE_S)
        yield bus, inbox, camera, stop
        await task


async def test_while_the_broker_is_away_a_file_waits(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    path, count = video(tmp_path / "a.avi", 60, codec="mjpeg"), 60
    async with running(memory_broker, str(path), patient=True) as (bus, inbox, camera, _):
        bus.cut()
        await asyncio.sleep(0.5)
        assert len(inbox.deliveries) < count
        bus.heal()
        await eventually(lambda: len(inbox.deliveries) >= count, PATIENCE_S)
    ids = {bytes(codec.decode(topics.REQUEST, body).id) for body in inbox.read(lambda body: body)}
    assert (len(ids), camera.tracker.frames, camera.tracker.skipped) == (count, count, 0)


async def test_while_the_broker_is_away_a_live_camera_is_passed_over(memory_broker: MemoryBroker) -> None:
    async with (
        MjpegCamera(counting()) as server,
        running(memory_broker, server.url(), patient=False) as (bus, inbox, camera, stop),
    ):
        bus.cut()
        await asyncio.sleep(1.5)
        bus.heal()
        before, healed = len(inbox.deliveries), time.time_ns()
        await eventually(lambda: len(inbox.deliveries) > before + 10, PATIENCE_S)
        stop.set()
    assert camera.tracker.dropped > 0
    taken = [codec.decode(topics.REQUEST, body).captured_ns for body in inbox.read(lambda body: body)]
    # what was seen while it was away is old news: only what was under way then may come late
    assert not [t for t in taken[before + 3 :] if t < healed - 200_000_000]
