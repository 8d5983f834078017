"""Several cameras in one process: each has a separate connection, and a separate reader that may fail alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog
from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.bus import Bus
from halimede.bus.port import refusal_text, refused_names
from halimede.cameras.camera import BACKOFF, Camera, CameraBackoff, wait_stopped
from halimede.cameras.publisher import CameraPublisher, CameraStatusPublisher, Connect, client_id
from halimede.cameras.settings import CameraSettings, ProcessSettings
from halimede.errors import RefusedError, first_error
from halimede.observe import Health, HttpServer
from halimede.observe.metrics import counter, gauge, registry

log = structlog.get_logger()

#: seconds that files wait, so that all cameras of a process start together
COMMON_START_S = 3.0
#: reason of a camera whose frames the broker refuses, and what to do
REFUSED, FIX = "Refused", "give it the credentials of a user who may publish as this camera (HALIMEDE_CREDENTIALS)"


@dataclass(slots=True)
class RunningCamera:
    """One camera, its connection to the bus, and the publisher of its pictures."""

    camera: Camera
    publisher: CameraPublisher
    bus: Bus


async def run(
    settings: ProcessSettings, connect: Connect, stop: asyncio.Event, backoff: CameraBackoff = BACKOFF
) -> dict[str, int]:
    """Run all cameras until ``stop``, or until all of them are files that have been played.

    ``connect``: makes the connection of one camera. ``backoff``: the pauses before a source is opened again. Returns
    the number of frames without a subscriber by camera, of those that have any. Raises HalimedeError.
    """
    running: list[RunningCamera] = []
    server = HttpServer(settings.http, health=health(running), registry=registry("camera", lambda: metrics(running)))
    with first_error():
        async with server, asyncio.TaskGroup() as group:
            for camera in with_common_start(settings.cameras):
                bus = connect(client_id(settings.namespace, camera.name), camera.name)
                group.create_task(_run(settings, camera, bus, stop, running=running, backoff=backoff), name=camera.name)
    return {camera.camera.settings.name: camera.publisher.unheard for camera in running if camera.publisher.unheard}


def with_common_start(cameras: Sequence[CameraSettings]) -> list[CameraSettings]:
    """Return the cameras; two or more files get a common start time, so that views of one scene stay synchronous.

    A file that has a start time keeps it.
    """
    files = [camera for camera in cameras if not camera.address.live]
    if len(files) < 2:
        return list(cameras)
    start = time.time_ns() + round(COMMON_START_S * 1e9)
    return [replace(c, start_ns=start) if c in files and not c.start_ns else c for c in cameras]


async def _run(
    settings: ProcessSettings,
    camera_settings: CameraSettings,
    bus: Bus,
    stop: asyncio.Event,
    *,
    running: list[RunningCamera],
    backoff: CameraBackoff,
) -> None:
    """Run one camera with its connection and its status; add it to ``running``, which health and metrics show."""
    publisher = CameraPublisher(
        bus,
        settings.namespace,
        camera_settings.name,
        qos=settings.qos,
        bare=settings.bare,
        patient=not camera_settings.address.live,
        stop=stop,
        return_s=settings.return_s,
    )
    camera = Camera(camera_settings, publisher.take, backoff=backoff)
    address = topics.CAMERA_STATUS.at(ns=settings.namespace, camera=camera_settings.name)
    status = CameraStatusPublisher(bus, address, camera.tracker)
    running.append(RunningCamera(camera, publisher, bus))
    async with bus, status:
        log.info("camera", camera=camera_settings.name, source=camera_settings.address.shown)
        while not await _has_ended(camera, stop):
            await wait_stopped(stop, backoff.locked_s)
        await status.leave()


async def _has_ended(camera: Camera, stop: asyncio.Event) -> bool:
    """Run a camera; return whether it has ended: one whose frames the broker refuses is tried again later."""
    try:
        with first_error():
            await camera.run(stop)
    except RefusedError as error:
        camera.tracker.ended("failed", REFUSED, str(error))
        log.warning("camera refused", camera=camera.settings.name, error=str(error), fix=FIX)
        return False
    return True


def health(running: Sequence[RunningCamera]) -> Health:
    """Return the checks of a camera process. A missing camera is not its fault, so it is not among them."""
    checks = Health()
    checks.ready("broker", lambda: "" if all(camera.bus.connected for camera in running) else "the broker is away")
    checks.ready("granted", lambda: refusal_text(refused_names(camera.bus for camera in running)))
    return checks


def metrics(running: Sequence[RunningCamera]) -> Iterable[Metric]:
    """Yield the metrics of all cameras, for Prometheus."""
    now = asyncio.get_running_loop().time()
    statuses = [camera.camera.tracker.status(now) for camera in running]

    def samples(read: Callable[..., float]) -> list[tuple[dict[str, str], float]]:
        return [({"camera": status.camera}, read(status)) for status in statuses]

    unheard = [({"camera": camera.camera.settings.name}, float(camera.publisher.unheard)) for camera in running]
    yield gauge("camera_running", "1: frames come from it.", samples(lambda s: s.state == "running"))
    yield gauge("camera_fps", "Frames published a second.", samples(lambda s: s.fps))
    yield counter("camera_frames", "Frames published.", samples(lambda s: s.frames))
    yield counter("camera_bytes", "Bytes of pictures published.", samples(lambda s: s.bytes))
    yield counter("camera_frames_without_subscriber", "Frames published that no worker read.", unheard)
    yield counter("camera_skipped", "Frames skipped for newer ones, or above the rate.", samples(lambda s: s.skipped))
    yield counter("camera_refused", "Frames too large or unreadable.", samples(lambda s: s.refused))
    yield counter("camera_reconnects", "Times that the source was opened again.", samples(lambda s: s.reconnects))
