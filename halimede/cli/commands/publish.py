"""``halimede publish``: publishes pictures, or frames of a video, stream or device, as a camera does.

Pictures are sent by ``publish_pictures``, all others by ``publish_stream``: ``halimede.cameras`` reads these in a
process that ends with the command.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import random
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halimede import topics
from halimede.bus.port import Bus
from halimede.bus.subscriber_return import FRAME_RETURN_S, SubscriberReturn
from halimede.cli import images
from halimede.cli import options as o
from halimede.cli.answer_drawer import AnswerDrawer, SentFrame
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.images import InlineImage
from halimede.cli.output import console, warn
from halimede.cli.progress import progress_bar
from halimede.cli.runner import run
from halimede.cli.waiting import wait_for_reader
from halimede.errors import DisconnectedError, HalimedeError, InvalidFieldError, first_error
from halimede.names import check_label
from halimede.topic import Address
from halimede.tracing import FrameRecord, TraceBuffer, write
from halimede.tracing.export import open_exporter
from halimede.tracing.steps import PUBLISH

if TYPE_CHECKING:
    from halimede.cameras.camera_status import CameraStatusTracker
    from halimede.cameras.ipc_messages import CapturedPicture
    from halimede.cameras.publisher import CameraPublisher

#: most unacknowledged pictures at a time
WINDOW = 20
#: seconds for which a frame is retried while the broker is not reachable, and between two attempts
PATIENCE_S = 30.0
RETRY_S = 0.2
#: default pictures per second
FPS = 25.0

#: suffixes of video files
VIDEOS = frozenset({
    ".264", ".265", ".asf", ".avi", ".flv", ".h264", ".h265", ".hevc", ".ivf", ".m4v", ".mjpeg", ".mjpg", ".mkv",
    ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm",
})  # fmt: skip
#: most unacknowledged frames at a time: of a file enough for a distant broker, of a live camera only the newest
FILE_WINDOW, LIVE_WINDOW = 20, 2
#: packages that videos need
NEEDED = ("av", "numpy", "PIL")

#: user properties of a message
Properties = Mapping[str, str] | None


def publish(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="JPEG and PNG files, or folders; or one video file, rtsp://, http:// (MJPEG) or /dev/video0; "
            "@FILE: read the address from that file.",
        ),
    ],
    camera: o.Camera,
    namespace: o.Namespace = "default",
    fps: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Frames a second; 0: as fast as the broker accepts them (its queues may then drop some). For a live "
            "source: the maximum. Default: 25 for pictures, the source's own rate for all others.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Send all frames N times.")] = 1,
    loop: Annotated[bool, typer.Option("--loop", help="Repeat all frames until Ctrl-C.")] = False,
    qos: Annotated[int, typer.Option(min=0, max=1, help="1: the broker acknowledges each frame; 0: it does not.")] = 1,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Send files as they are, without id and sequence, as simple cameras do."),
    ] = False,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Send pictures in random order, another one in each round.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The order of --shuffle: the same for the same number.")
    ] = None,
    max_width: Annotated[
        int, typer.Option(min=0, max=16_384, help="Scale wider frames down to this; 0: never.", metavar="PIXELS")
    ] = 0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start when a worker reads the camera; else exit 1, with what is missing.")
    ] = False,
    timeout: o.WaitTimeout = 120.0,
    return_timeout: o.ReturnTimeout = FRAME_RETURN_S,
    draw: Annotated[
        Path | None,
        typer.Option(
            "--draw",
            metavar="DIR",
            help="Draw the answers to the frames into a new folder: a JPEG for each frame and service, at most 1000.",
        ),
    ] = None,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Publish pictures, a video or a stream as a camera. All pictures are checked first.

    The exit code is 1 if a frame had no subscriber, or with --draw no answer. If workers go away, or the broker
    restarts, at most 20 frames are in progress; they wait for the workers' return. A live source continues meanwhile:
    its older frames are skipped.

    \b
    Examples:
      halimede publish pictures/ --camera cam0
      halimede publish pictures/ --camera cam0 --wait --timeout 60
      halimede publish a.jpg b.png --camera cam0 --fps 5 --repeat 10
      halimede publish pictures/ --camera cam0 --loop --bare --qos 0
      halimede publish classes/ --camera cam0 --shuffle --seed 1
      halimede publish pictures/ --camera cam0 --fps 5 --draw answers/
      halimede publish street.mp4 --camera cam0 --loop
      halimede publish rtsp://10.0.0.7/stream1 --camera cam0 --fps 10 --max-width 640
    """
    if loop and repeat > 1:
        raise typer.BadParameter("give --loop or --repeat, not both")
    if seed is not None and not shuffle:
        raise typer.BadParameter("give --shuffle with --seed")
    if shuffle and is_stream(paths):
        raise typer.BadParameter("give --shuffle only for pictures: a video has an order")

    if wait and not qos:
        raise typer.BadParameter("--wait needs --qos 1: with --qos 0 the broker does not report subscribers")
    if draw and bare:
        raise typer.BadParameter("give --draw or --bare, not both: only the id of a frame leads to its answer")

    async def command() -> int:
        plan = PublishPlan(
            paths,
            camera,
            o.namespace_of(namespace),
            fps,
            0 if loop else repeat,
            qos,
            bare=bare,
            max_width=max_width,
            order=random.Random(seed) if shuffle else None,  # noqa: S311  # no secret
            wait_s=timeout if wait else 0.0,
            return_s=return_timeout,
            draw=draw,
        )
        publish = publish_stream if is_stream(paths) else publish_pictures
        return await publish(o.address(broker, credentials), plan)

    run(command)


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """The frames to send, and how.

    Attributes:
        paths: files and folders, or one video, stream or device.
        camera, namespace: the camera as which they are published.
        fps: frames per second; 0: as fast as the broker accepts; None: the source's own, of pictures ``FPS``.
        rounds: how often all frames are sent; 0: no limit.
        qos: of the messages, 0 or 1.
        bare: send pictures as they are, without id and sequence number.
        max_width: wider frames of a video are scaled down to this, in pixels; 0: none are.
        order: shuffles pictures in each round; None: they keep the order of their names.
        wait_s: seconds for a worker to read the camera before frames are counted; 0: do not wait.
        return_s: seconds for which frames wait until a worker reads the camera again.
        draw: the folder for drawn answers; None: none are drawn.

    """

    paths: Sequence[str]
    camera: str
    namespace: str
    fps: float | None
    rounds: int
    qos: int
    bare: bool
    max_width: int = 0
    order: random.Random | None = None
    wait_s: float = 0.0
    return_s: float = FRAME_RETURN_S
    draw: Path | None = None


@dataclass(slots=True)
class PublishSummary:
    """The outcome of sending pictures."""

    #: with or without a subscriber
    sent: int = 0
    #: sent without a subscriber
    unheard: int = 0
    #: when sending began, on the loop's clock, after the wait for a worker; 0: it has not
    began: float = 0.0


async def publish_pictures(broker: BrokerAddress, plan: PublishPlan) -> int:
    """Send all pictures of a plan with a progress bar, and print a summary.

    Returns the exit code: 1 if a frame had no subscriber or, with ``plan.draw``, no answer. Raises HalimedeError.
    """
    address = topics.CAMERA_FRAME.at(ns=plan.namespace, camera=check_label("--camera", plan.camera))
    pictures, other_files = images.find(plan.paths)
    async with Client.to(broker) as client:
        images.check_sizes(pictures, images.limit(client.bus.max_packet, bare=plan.bare))
        if other_files:
            warn(f"skipped {other_files} files that are neither JPEG nor PNG")
        if plan.bare and (count := images.count_rotated(pictures)):
            warn(
                f"{count} of {len(pictures)} pictures have an EXIF orientation, and --bare sends them as they are:"
                " workers see them unturned, unless their service says `source.orientation: exif`"
            )
        if plan.order is None and (folders := images.sorted_by_folder(pictures)):
            warn(
                f"the pictures are sorted by folder ({', '.join(folders[:3])}, ...): if these are classes, a service"
                " takes their order for drift, and its budget does not fit: add --shuffle"
            )
        tally, loop = PublishSummary(), asyncio.get_running_loop()
        drawer = await start_drawing(client.bus, plan)
        names = {"namespace": plan.namespace, "service": "", "worker": plan.camera, "node": socket.gethostname()}
        try:
            async with open_exporter("camera", names) as exporter:
                buffer = TraceBuffer(exporter, size=WINDOW)
                await send_all(client, address, pictures, plan, tally, trace_buffer=buffer, drawer=drawer)
        finally:
            _report(address, plan, tally, loop.time() - tally.began if tally.began else 0.0)
        unanswered = await drawer.finish() if drawer else 0
    return 1 if tally.unheard or unanswered else 0


async def start_drawing(bus: Bus, plan: PublishPlan) -> AnswerDrawer | None:
    """Return the started drawer of answers; None if the plan has no folder for them. Raises HalimedeError."""
    if plan.draw is None:
        return None
    drawer = AnswerDrawer(plan.draw, plan.namespace)
    await drawer.start(bus)
    return drawer


async def send_all(
    client: Client,
    address: Address[bytes],
    pictures: Sequence[InlineImage],
    plan: PublishPlan,
    tally: PublishSummary,
    *,
    trace_buffer: TraceBuffer,
    drawer: AnswerDrawer | None = None,
) -> None:
    """Send pictures at the pace of the plan, at most ``WINDOW`` at a time unacknowledged; count into ``tally``.

    ``trace_buffer`` records when each frame was sent, for traces; ``drawer`` draws the answers, None: nobody does.
    Raises NotReadyError if no worker reads the camera in time, and HalimedeError.
    """
    bus, window = client.bus, asyncio.Semaphore(WINDOW)
    loop = asyncio.get_running_loop()
    subscribers = SubscriberReturn(bus, plan.return_s, only_after_reconnect=False)
    total = len(pictures) * plan.rounds or None
    fps = FPS if plan.fps is None else plan.fps

    def encode(picture: InlineImage, sequence: int) -> tuple[bytes, bytes]:
        id_ = secrets.token_bytes(16)
        if drawer:
            drawer.add(id_, SentFrame(sequence, picture.path.name, picture.path.read_bytes))
        return id_, images.payload(picture, plan.camera, sequence, id_, bare=plan.bare)

    async def send(data: bytes, trace: FrameRecord | None) -> None:
        began = time.monotonic()
        try:
            has_subscriber = await send_frame(
                bus, address, data, plan.qos, subscribers, write(trace.context) if trace else None
            )
            if trace:
                trace.step((PUBLISH, began, time.monotonic(), plan.camera, has_subscriber))
                trace_buffer.finish(trace)
            tally.sent += 1
            tally.unheard += not has_subscriber
            progress.update(task, completed=tally.sent)
        finally:
            window.release()

    with progress_bar() as progress, first_error():
        task = progress.add_task(str(address), total=total)
        frames = enumerate(_rounds(pictures, plan))
        if plan.wait_s:
            _, first = encode(next(frames)[1], 0)
            progress.update(task, description=f"waiting for a subscriber of {address}")
            send_first = partial(send_frame, bus, address, first, plan.qos, subscribers)
            await wait_for_reader(client, plan.namespace, plan.camera, send_first, plan.wait_s)
            progress.update(task, description=str(address))
            tally.sent = 1
        started = tally.began = loop.time()
        async with asyncio.TaskGroup() as group:
            for sequence, picture in frames:
                if fps:
                    await asyncio.sleep(max(0.0, started + sequence / fps - loop.time()))
                await window.acquire()
                id_, data = encode(picture, sequence)
                group.create_task(send(data, None if plan.bare else trace_buffer.begin(id_)))


async def send_frame(
    bus: Bus,
    address: Address[bytes],
    data: bytes,
    qos: int,
    subscribers: SubscriberReturn,
    properties: Properties = None,
) -> bool:
    """Publish one camera message; return whether there is a subscriber.

    It is repeated while the broker is not reachable, and while subscribers that were there before may return. A frame
    keeps its id, so that workers answer it once. Raises UnreachableError after ``PATIENCE_S`` without the broker, and
    the further errors of ``Bus.publish``.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + PATIENCE_S
    while True:
        try:
            has_subscriber = await bus.publish(address, data, qos=qos, properties=properties)
        except DisconnectedError as error:
            if loop.time() >= give_up:
                raise UnreachableError(f"the broker has been away for {PATIENCE_S:g} s: {error}") from error
        else:
            if not subscribers.must_resend(has_subscriber=has_subscriber):
                return has_subscriber
            give_up = loop.time() + PATIENCE_S
        await asyncio.sleep(RETRY_S)


def _rounds(pictures: Sequence[InlineImage], plan: PublishPlan) -> Iterator[InlineImage]:
    """Yield the pictures of all rounds, each round in the order of the plan."""
    for _ in itertools.count() if plan.rounds == 0 else range(plan.rounds):
        yield from plan.order.sample(pictures, len(pictures)) if plan.order else pictures


def _report(address: Address[bytes], plan: PublishPlan, tally: PublishSummary, seconds: float) -> None:
    """Print the summary of sent pictures."""
    rate = f"{tally.sent / seconds:.0f} a second" if seconds > 0 else "at once"
    acknowledged = ", each acknowledged by the broker" if plan.qos and tally.sent else ""
    console().print(f"{tally.sent} frames sent to {address} in {seconds:.1f} s ({rate}){acknowledged}")
    _warn_unheard(plan, tally.sent, tally.unheard)


def _warn_unheard(plan: PublishPlan, sent: int, unheard: int) -> None:
    """Warn of frames without a subscriber, if there are any."""
    if not unheard:
        return
    reads = "reads" if sent == unheard else "read"
    wait = "" if sent == unheard else f" then, nor within --return-timeout {plan.return_s:g}"
    warn(
        f"{unheard} of them had no subscriber: no edge worker {reads} camera {plan.camera} in namespace "
        f"{plan.namespace}{wait} (see `halimede get ji -A`, `halimede get mei -A`)"
    )


def is_stream(paths: Sequence[str]) -> bool:
    """Whether one of the paths is an address, a device, ``@FILE`` or a video file, judged only by its text."""
    return any(
        "://" in path or path.startswith(("@", "/dev/")) or Path(path).suffix.lower() in VIDEOS for path in paths
    )


class WaitingPublisher:
    """Publishes the pictures of a video: the first one until it has a subscriber if the plan waits, then all others."""

    def __init__(self, publisher: CameraPublisher, client: Client, plan: PublishPlan) -> None:
        self._publisher = publisher
        self._client = client
        self._plan = plan
        self._is_ready = not plan.wait_s
        #: when it began to publish, on the monotonic clock
        self.began = time.monotonic()
        self._first = asyncio.Lock()

    async def take(self, picture: CapturedPicture, sequence: int) -> bool:
        """Publish a picture; return whether the broker accepted it.

        Raises NotReadyError if no worker reads the camera in time, and RefusedError.
        """
        if not self._is_ready:
            async with self._first:
                if not self._is_ready:
                    plan, repeat = self._plan, partial(self._publish_once, picture, sequence)
                    await wait_for_reader(self._client, plan.namespace, plan.camera, repeat, plan.wait_s)
                    self._is_ready, self.began = True, time.monotonic()
                    return True
        return await self._publisher.take(picture, sequence)

    async def _publish_once(self, picture: CapturedPicture, sequence: int) -> bool:
        """Publish a picture; return whether it had a subscriber. Without one, it does not count as unheard."""
        accepted = await self._publisher.take(picture, sequence)
        has_subscriber, self._publisher.unheard = accepted and not self._publisher.unheard, 0
        return has_subscriber


async def publish_stream(broker: BrokerAddress, plan: PublishPlan) -> int:
    """Send a source's frames until its end or Ctrl-C, and print a summary.

    Returns the exit code: 1 if a frame had no subscriber or, with ``plan.draw``, no answer. Raises HalimedeError.
    """
    from halimede.cameras.camera import Camera
    from halimede.cameras.ipc_messages import SourceError
    from halimede.cameras.publisher import CameraPublisher
    from halimede.cameras.settings import CameraSettings, parse_option

    name = check_label("--camera", plan.camera)
    if len(plan.paths) > 1:
        raise InvalidFieldError("SOURCE", " ".join(plan.paths), "give only one video, stream or device")
    if missing := [package for package in NEEDED if importlib.util.find_spec(package) is None]:
        raise HalimedeError(f"videos need {', '.join(missing)}: pip install 'halimede[camera]'")
    address = parse_option("SOURCE", plan.paths[0], os.environ)
    if not address.live and not await asyncio.to_thread(Path(address.target).exists):
        raise InvalidFieldError("SOURCE", address.shown, "there is no such file")
    live, stop = address.live, asyncio.Event()
    async with Client.to(broker) as client:
        settings = CameraSettings(
            name=name,
            address=address,
            fps=(plan.fps or 0.0) if live else 0.0,
            pace=-1.0 if plan.fps is None else plan.fps,  # -1: the source's own
            plays=plan.rounds,
            max_width=plan.max_width,
            max_bytes=images.limit(client.bus.max_packet, bare=plan.bare),
            window=LIVE_WINDOW if live else FILE_WINDOW,
        )
        drawer = await start_drawing(client.bus, plan)
        publisher = CameraPublisher(
            client.bus,
            plan.namespace,
            name,
            qos=plan.qos,
            bare=plan.bare,
            patient=not live,
            stop=stop,
            return_s=plan.return_s,
            on_frame=drawer.add_frame if drawer else None,
            on_drop=drawer.drop if drawer else None,
        )
        waiting = WaitingPublisher(publisher, client, plan)
        camera = Camera(settings, waiting.take)
        try:
            with first_error():
                await camera.run(stop, once=True)
        except SourceError as error:
            raise HalimedeError(f"{address.shown}: {error}") from None
        finally:
            _report_stream(plan, camera.tracker, publisher.unheard, time.monotonic() - waiting.began)
        unanswered = await drawer.finish() if drawer else 0
    return 1 if publisher.unheard or unanswered else 0


def _report_stream(plan: PublishPlan, tracker: CameraStatusTracker, unheard: int, seconds: float) -> None:
    """Print the summary of the frames of a video, stream or device."""
    status = tracker.status(0.0)
    console().print(
        f"{status.frames} frames of {status.source} sent as camera {plan.camera} in {seconds:.1f} s "
        f"({status.frames / max(seconds, 0.001):.0f} a second)"
    )
    if status.skipped or status.refused:
        warn(
            f"{status.skipped - tracker.dropped} frames were skipped for newer ones or above --fps, {status.refused} "
            f"were unreadable or too large, and {tracker.dropped} were not sent because the broker or a worker was away"
        )
    _warn_unheard(plan, status.frames, unheard)
