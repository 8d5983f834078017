"""``halimede record``: writes a camera's frames into a folder, until a limit or Ctrl-C."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from halimede import topics
from halimede.bus.message import Delivery
from halimede.cli import options as o
from halimede.cli import recording
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.output import console, warn
from halimede.cli.progress import progress_bar
from halimede.cli.recording import RecordingWriter
from halimede.cli.runner import run
from halimede.errors import DecodeError, HalimedeError
from halimede.names import check_label

#: most frames that wait for the disk; above that the broker queues frames or, at QoS 0, they are lost and counted
QUEUE = 100
#: seconds between two updates of the progress bar
POLL_S = 0.2


def record(
    folder: o.RecordingFolder,
    camera: o.Camera,
    namespace: o.Namespace = "default",
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Stop after this time.", show_default=False)] = None,
    frames: Annotated[int, typer.Option(min=1, help="Stop after this many frames.")] = 100_000,
    max_bytes: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Stop before the frames exceed this size.")
    ] = 1_000_000_000,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Write a camera's frames into a new folder, with their times. Edge workers still receive the frames.

    \b
    Examples:
      halimede record recordings/monday --camera cam0 --seconds 60
      halimede record recordings/few --camera cam0 --frames 100 --max-bytes 50000000
    """

    async def command() -> None:
        limits = RecordLimits(seconds or 0.0, frames, max_bytes)
        await record_frames(o.address(broker, credentials), folder, camera, o.namespace_of(namespace), limits)

    run(command)


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Limits at which a recording ends. 0 of seconds or frames: no limit; ``max_bytes`` of all frames' files."""

    seconds: float
    frames: int
    max_bytes: int


class Recorder:
    """Stores frames of a camera as they arrive: the handler of a subscription.

    Attributes:
        full: is set when the recording has to end.
        reason: why it has to end, for people; empty: it has not.
        error: the error that ends it; None: none.
        skipped: messages that were no frames.
        last_ms: milliseconds from the first message to the last frame.

    """

    def __init__(self, tape_: RecordingWriter, limits: RecordLimits) -> None:
        self.full = asyncio.Event()
        self.reason = ""
        self.error: HalimedeError | None = None
        self.skipped = 0
        self.last_ms = 0.0
        self._tape = tape_
        self._limits = limits
        self._began = -1.0  # when the first message arrived, on the loop's clock; negative: none has

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        """Store a frame, unless the recording has ended."""
        if self.full.is_set():
            return
        now = asyncio.get_running_loop().time()
        payload = bytes(delivery.body)
        if self._tape.size + len(payload) > self._limits.max_bytes:
            self._end(f"the next frame would exceed --max-bytes {self._limits.max_bytes}")
            return
        self._began = now if self._began < 0 else self._began
        offset = (now - self._began) * 1000
        try:
            await asyncio.to_thread(self._tape.add, payload, offset)
        except DecodeError:
            self.skipped += 1
            return
        except HalimedeError as error:
            self.error = error
            self._end(str(error))
            return
        self.last_ms = offset
        if self._limits.frames and self._tape.frames >= self._limits.frames:
            self._end(f"{self._limits.frames} frames are recorded")

    def _end(self, reason: str) -> None:
        self.reason = reason
        self.full.set()


async def record_frames(broker: BrokerAddress, folder: str, camera: str, namespace: str, limits: RecordLimits) -> None:
    """Record a camera until a limit or until it is cancelled, and print a summary. Raises HalimedeError."""
    filter_ = topics.CAMERA_FRAME.filter(ns=namespace, camera=check_label("--camera", camera))
    async with Client.to(broker) as client:
        with recording.create(Path(folder)) as tape_:
            recorder = Recorder(tape_, limits)
            await client.bus.subscribe(filter_, recorder, queue=QUEUE)
            try:
                await _until(recorder, tape_, limits, str(filter_))
            finally:
                # the running handler finishes before the index is closed; later frames are ignored
                recorder.full.set()
                await client.bus.unsubscribe(filter_)
                _report(folder, tape_, recorder, client.bus.stats.dropped)
    if recorder.error:
        raise recorder.error
    if not tape_.frames:
        warn(f"no frame arrived: camera {camera} in namespace {namespace} does not publish, or you may not read it")


async def _until(recorder: Recorder, tape_: RecordingWriter, limits: RecordLimits, title: str) -> None:
    """Wait until a limit is reached, with a progress bar."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.seconds if limits.seconds else float("inf")
    with progress_bar() as progress:
        task = progress.add_task(title, total=limits.frames or None)
        while not recorder.full.is_set():
            remaining_s = end - loop.time()
            if remaining_s <= 0:
                recorder.reason = f"{limits.seconds:g} seconds have passed"
                return
            try:
                async with asyncio.timeout(min(POLL_S, remaining_s)):
                    await recorder.full.wait()
            except TimeoutError:
                progress.update(task, completed=tape_.frames)


def _report(folder: str, tape_: RecordingWriter, recorder: Recorder, dropped: int) -> None:
    """Print the summary; ``dropped``: frames that arrived faster than the disk could take them."""
    why = f": {recorder.reason}" if recorder.reason and not recorder.error else ""
    seconds = recorder.last_ms / 1000
    console().print(f"{tape_.frames} frames, {tape_.size} bytes, {seconds:.1f} s recorded in {folder}{why}")
    if recorder.skipped:
        warn(f"{recorder.skipped} messages were not frames and were skipped")
    if dropped:
        warn(f"{dropped} frames arrived faster than they could be written, and are missing")
