"""``halimede replay``: publishes a recording, or a plain folder of pictures, as the camera would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from halimede import topics
from halimede.bus.subscriber_return import FRAME_RETURN_S, SubscriberReturn
from halimede.cli import images, recording
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.publish import WINDOW, send_frame
from halimede.cli.output import console, warn
from halimede.cli.progress import progress_bar
from halimede.cli.recording import RecordingEntry
from halimede.cli.runner import run
from halimede.cli.waiting import wait_for_reader
from halimede.errors import HalimedeError, RefusedError, TooLargeError, first_error
from halimede.names import check_label
from halimede.topic import Address


def replay(
    folder: o.RecordingFolder,
    camera: o.Camera,
    namespace: o.Namespace = "default",
    speed: Annotated[float, typer.Option(min=0.01, max=1000, help="The speed, as a multiple of the original.")] = 1.0,
    fps: Annotated[
        float | None,
        typer.Option(min=0.01, help="Frames a second, in place of the timing. Pictures: 25.", show_default=False),
    ] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Repeat until Ctrl-C.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start when a worker reads the camera; else exit 1, with what is missing.")
    ] = False,
    timeout: o.WaitTimeout = 120.0,
    return_timeout: o.ReturnTimeout = FRAME_RETURN_S,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Publish a recording with its original timing, or a folder of pictures in the order of their names.

    The exit code is 1 if a frame was refused or had no subscriber.

    \b
    Examples:
      halimede replay recordings/monday --camera cam0
      halimede replay recordings/monday --camera cam1 --speed 4 --wait
      halimede replay digits/pictures --camera cam0 --fps 10 --loop
    """
    if fps and speed != 1.0:
        raise typer.BadParameter("give --fps or --speed, not both")

    async def command() -> int:
        where, wait_s = o.namespace_of(namespace), timeout if wait else 0.0
        plan = ReplayPlan(folder, camera, where, speed, fps or 0.0, loop=loop, wait_s=wait_s, return_s=return_timeout)
        return await replay_frames(o.address(broker, credentials), plan)

    run(command)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The recording to replay, and how.

    Attributes:
        folder: a recording, or a folder of pictures.
        camera, namespace: the camera as which it is published.
        speed: as a multiple of the original; without effect if ``fps`` is set.
        fps: frames per second; 0: the recording's own times, of pictures 25 a second.
        loop: repeat it without end.
        wait_s: seconds for a worker to read the camera before frames are counted; 0: do not wait.
        return_s: seconds for which frames wait until a worker reads the camera again.

    """

    folder: str
    camera: str
    namespace: str
    speed: float = 1.0
    fps: float = 0.0
    loop: bool = False
    wait_s: float = 0.0
    return_s: float = FRAME_RETURN_S


@dataclass(frozen=True, slots=True)
class ReplayFrames:
    """Frames in the order of their times, and the folder that has their files."""

    folder: Path
    entries: Sequence[RecordingEntry]


@dataclass(slots=True)
class ReplaySummary:
    """The outcome of a replay."""

    #: with or without a subscriber
    sent: int = 0
    #: sent without a subscriber
    unheard: int = 0
    #: refused by the broker, or too large for it
    refused: int = 0
    #: seconds of the longest delay of a frame
    late: float = 0.0
    #: why the first one was refused
    why: str = ""


async def replay_frames(broker: BrokerAddress, plan: ReplayPlan) -> int:
    """Replay, and print a summary at the end.

    Returns the exit code: 1 if a frame was refused or had no subscriber. Raises HalimedeError.
    """
    address = topics.CAMERA_FRAME.at(ns=plan.namespace, camera=check_label("--camera", plan.camera))
    reel = load(Path(plan.folder), plan)
    async with Client.to(broker) as client:
        largest = max(reel.entries, key=lambda entry: entry.size)
        if largest.size > (limit := images.limit(client.bus.max_packet, bare=False)):
            raise TooLargeError(
                f"{reel.folder / largest.file}: {largest.size} bytes are more than the broker accepts in one message: "
                f"{limit} bytes"
            )
        tally, loop = ReplaySummary(), asyncio.get_running_loop()
        began = loop.time()
        try:
            await play(client, address, reel, plan, tally)
        finally:
            _report(address, plan, tally, loop.time() - began)
    return 1 if tally.refused or tally.unheard else 0


def load(folder: Path, plan: ReplayPlan) -> ReplayFrames:
    """Return the frames of a recording or of a folder of pictures, with the times at which they are due.

    Raises HalimedeError.
    """
    if not folder.is_dir():
        raise HalimedeError(f"{folder}: there is no such folder: give a recording or a folder of pictures")
    if (folder / recording.INDEX).exists():
        entries, gap = recording.load(folder), 1 / plan.fps if plan.fps else 0.0
    else:
        pictures, other_files = images.find([str(folder)])
        if other_files:
            warn(f"skipped {other_files} files that are neither JPEG nor PNG")
        entries = [
            RecordingEntry(
                file=str(picture.path.relative_to(folder)),
                offset_ms=0.0,
                size=picture.size,
                encoding=picture.encoding,
                id="0" * 32,  # as in a recorded frame, so that it gets an id and a sequence
            )
            for picture in pictures
        ]
        gap = 1 / plan.fps if plan.fps else recording.PLAIN_GAP_S / plan.speed
    return ReplayFrames(folder, due(entries, gap, plan.speed))


def due(entries: Sequence[RecordingEntry], gap_s: float, speed: float) -> list[RecordingEntry]:
    """Return frames with the offsets at which they are sent: every ``gap_s`` seconds, or if that is 0 as recorded.

    ``speed``: the multiple of the original at which recorded times pass; it does not change ``gap_s``.
    """
    if gap_s:
        return [replace(entry, offset_ms=i * gap_s * 1000) for i, entry in enumerate(entries)]
    first = entries[0].offset_ms
    return [replace(entry, offset_ms=(entry.offset_ms - first) / speed) for entry in entries]


def length_ms(entries: Sequence[RecordingEntry]) -> float:
    """Return the milliseconds of one round: from its first frame to the first frame of the next round."""
    last = entries[-1].offset_ms
    return last + (last / (len(entries) - 1) if len(entries) > 1 else recording.PLAIN_GAP_S * 1000)


async def play(
    client: Client, address: Address[bytes], reel: ReplayFrames, plan: ReplayPlan, tally: ReplaySummary
) -> None:
    """Send all frames at their times, at most ``WINDOW`` unacknowledged; count into ``tally``.

    Raises NotReadyError if no worker reads the camera in time, and HalimedeError.
    """
    bus, window, loop = client.bus, asyncio.Semaphore(WINDOW), asyncio.get_running_loop()
    subscribers = SubscriberReturn(bus, plan.return_s, only_after_reconnect=False)

    async def send(data: bytes) -> None:
        try:
            has_subscriber = await send_frame(bus, address, data, 1, subscribers)  # other tasks count meanwhile
            tally.unheard += not has_subscriber
            tally.sent += 1
        except (RefusedError, TooLargeError) as error:
            tally.refused += 1
            tally.why = tally.why or str(error)
        finally:
            window.release()

    with progress_bar() as progress, first_error():
        task = progress.add_task(str(address), total=None if plan.loop else len(reel.entries))
        if plan.wait_s:
            first = recording.payload(reel.folder, reel.entries[0], plan.camera, 0)
            progress.update(task, description=f"waiting for a subscriber of {address}")
            send_first = partial(send_frame, bus, address, first, 1, subscribers)
            await wait_for_reader(client, plan.namespace, plan.camera, send_first, plan.wait_s)
            progress.update(task, description=str(address))
            tally.sent = 1
        began, skip = loop.time(), tally.sent
        async with asyncio.TaskGroup() as group:
            for sequence, (time, entry) in enumerate(_rounds(reel.entries, loop=plan.loop)):
                if sequence < skip:  # it was sent to find out whether there is a subscriber
                    continue
                await asyncio.sleep(max(0.0, began + time - loop.time()))
                data = await asyncio.to_thread(recording.payload, reel.folder, entry, plan.camera, sequence)
                await window.acquire()
                tally.late = max(tally.late, loop.time() - began - time)
                group.create_task(send(data))
                progress.update(task, completed=tally.sent)


def _rounds(entries: Sequence[RecordingEntry], *, loop: bool) -> Iterator[tuple[float, RecordingEntry]]:
    """Yield the frames with the seconds at which they are due, once or without end."""
    whole = length_ms(entries)
    for number in count() if loop else range(1):
        for entry in entries:
            yield (number * whole + entry.offset_ms) / 1000, entry


def _report(address: Address[bytes], plan: ReplayPlan, tally: ReplaySummary, seconds: float) -> None:
    """Print the summary of a replay."""
    console().print(f"{tally.sent} frames sent to {address} in {seconds:.1f} s, {tally.refused} refused")
    if tally.refused:
        warn(f"the first refusal: {tally.why}")
    if tally.unheard:
        warn(
            f"{tally.unheard} of them had no subscriber: no edge worker reads camera {plan.camera} in namespace "
            f"{plan.namespace}; --wait waits for one"
        )
    if tally.late > 1.0:
        warn(f"the broker or this machine is too slow: frames were sent up to {tally.late:.1f} s late")
