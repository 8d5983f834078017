"""``halimede publish`` of what has to be read frame by frame: a video file, a stream, a device.

Whoever reads it and how is ``halimede.cameras``'s part; here it ends with the command, and says what became of it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.cli import images
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.output import console, warn
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import CameraStatus
from halimede.names import check_label

VIDEOS = frozenset({
    ".264", ".265", ".asf", ".avi", ".flv", ".h264", ".h265", ".hevc", ".ivf", ".m4v", ".mjpeg", ".mjpg", ".mkv",
    ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm",
})  # fmt: skip
#: frames on their way at a time: of a file enough to keep a distant broker busy, of a live camera only the newest
FILE_WINDOW, LIVE_WINDOW = 20, 2
NEEDED = ("av", "numpy", "PIL")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent. ``rounds`` 0: for ever; ``fps`` None: at its own speed."""

    paths: Sequence[str]
    camera: str
    namespace: str
    fps: float | None
    rounds: int
    qos: int
    bare: bool
    max_width: int


def is_stream(paths: Sequence[str]) -> bool:
    """Say whether one of these is no picture and no folder of them."""
    return any(
        "://" in path or path.startswith(("@", "/dev/")) or Path(path).suffix.lower() in VIDEOS for path in paths
    )


async def publish(broker: BrokerAddress, order: Order) -> None:
    """Send a source's frames until its end or Ctrl-C, and say what became of them. Raises HalimedeError."""
    from halimede.cameras.camera import Camera
    from halimede.cameras.ipc_messages import SourceError
    from halimede.cameras.publisher import CameraPublisher
    from halimede.cameras.settings import CameraSettings, given

    name = check_label("--camera", order.camera)
    if len(order.paths) > 1:
        raise InvalidFieldError("SOURCE", " ".join(order.paths), "give one video, stream or device at a time")
    if missing := [each for each in NEEDED if importlib.util.find_spec(each) is None]:
        raise HalimedeError(f"reading videos takes {', '.join(missing)}: pip install 'halimede[camera]'")
    address = given("SOURCE", order.paths[0], os.environ)
    live, stop = address.live, asyncio.Event()
    async with Client.to(broker) as client:
        settings = CameraSettings(
            name=name,
            address=address,
            fps=(order.fps or 0.0) if live else 0.0,
            pace=-1.0 if order.fps is None else order.fps,
            turns=order.rounds,
            max_width=order.max_width,
            max_bytes=images.limit(client.bus.max_packet, bare=order.bare),
            window=LIVE_WINDOW if live else FILE_WINDOW,
        )
        publisher = CameraPublisher(
            client.bus, order.namespace, name, qos=order.qos, bare=order.bare, patient=not live, stop=stop
        )
        camera = Camera(settings, publisher.take)
        began = time.monotonic()
        try:
            await camera.run(stop, once=True)
        except SourceError as error:
            raise HalimedeError(f"{address.shown}: {error}") from None
        finally:
            _report(order, camera.tracker.status(0.0), publisher.unheard, time.monotonic() - began)


def _report(order: Order, status: CameraStatus, unheard: int, seconds: float) -> None:
    console().print(
        f"{status.frames} frames of {status.source} sent as camera {order.camera} in {seconds:.1f} s "
        f"({status.frames / max(seconds, 0.001):.0f} a second)"
    )
    if status.skipped or status.refused:
        warn(f"{status.skipped} were passed over for newer ones, {status.refused} could not be read or were too large")
    if unheard:
        warn(
            f"{unheard} of them reached nobody: no edge worker takes camera {order.camera} in namespace "
            f"{order.namespace} (see `halimede get ji -A`, `halimede get mei -A`)"
        )
