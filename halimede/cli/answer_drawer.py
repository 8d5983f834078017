"""Draws the answers to the frames that ``halimede publish`` sends, into files.

The command has each frame, and a result has the id of its frame. A sent frame waits for its answers within limits of
number and bytes. Each service's first answer to it is drawn in a thread, so that sending is not delayed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli.drawings import drawing_name, make_folder
from halimede.cli.output import clean, console, warn, write_file
from halimede.errors import DecodeError
from halimede.messages import Frame, Result

#: the option, for errors
OPTION = "--draw"
#: most drawings of one command; most frames that wait for an answer, and most bytes of those that are not on disk
MAX_DRAWINGS, MAX_WAITING, MAX_BYTES = 1000, 1000, 128 * 1024 * 1024
#: seconds without a new answer after which the command ends, once all frames are sent
QUIET_S = 10.0


@dataclass(slots=True)
class SentFrame:
    """A frame that was sent.

    Attributes:
        sequence: its number, which begins the names of its drawings.
        name: the name of its file or camera.
        read: returns the content of its file; may raise OSError.
        size: bytes that it holds in memory; 0: it is on disk.
        services: names of the services that have answered it.

    """

    sequence: int
    name: str
    read: Callable[[], bytes]
    size: int = 0
    services: set[str] = field(default_factory=set)


class AnswerDrawer:
    """Draws answers of the services of a namespace into a folder.

    Call ``start`` first, ``add`` or ``add_frame`` before each frame is sent, and ``finish`` last, on one event loop.
    """

    def __init__(self, folder: Path, namespace: str) -> None:
        self._folder = folder
        self._namespace = namespace
        self._frames: OrderedDict[str, SentFrame] = OrderedDict()
        self._bytes = 0  # in memory, of all of them
        self._last_id = ""
        self._answers: asyncio.Queue[tuple[SentFrame, Result]] = asyncio.Queue(MAX_DRAWINGS)
        self._task: asyncio.Task[None] | None = None
        # numbers: of answers queued for drawing, and drawn; of frames sent, watched for answers, and answered
        self._accepted = self._drawn = 0
        self._sent = self._watched = self._answered = 0
        self._arrival = asyncio.Event()

    async def start(self, bus: Bus) -> None:
        """Make the folder, and subscribe to the results of the namespace.

        Raises InvalidFieldError for a folder that cannot be used, HalimedeError without packages that draw, BusError.
        """
        await asyncio.to_thread(make_folder, OPTION, self._folder)
        for topic in (topics.RESULT, topics.MULTI_RESULT):
            await bus.subscribe_now(topic.filter(ns=self._namespace), self._answer)
        self._task = asyncio.create_task(self._draw_all(), name="drawings")

    def add(self, id_: bytes, sent: SentFrame) -> None:
        """Record a frame that is about to be sent; of more than ``MAX_DRAWINGS`` frames, only count it.

        A frame is sent again with its sequence number if it had no subscriber: it then replaces its earlier record.
        ``id_`` is the frame's id, 16 bytes.
        """
        last = self._frames.get(self._last_id)
        if last and last.sequence == sent.sequence:
            self._forget(self._last_id)
        self._sent += 1
        if self._watched == MAX_DRAWINGS:
            return
        self._watched += 1
        self._last_id = id_.hex()
        self._frames[self._last_id] = sent
        self._bytes += sent.size
        while len(self._frames) > MAX_WAITING or self._bytes > MAX_BYTES:
            self._bytes -= self._frames.popitem(last=False)[1].size

    def add_frame(self, frame: Frame) -> None:
        """Record a frame that is about to be sent and is not on disk: its file stays in memory, within the limits."""
        data = bytes(frame.data)
        self.add(frame.id, SentFrame(frame.sequence, frame.camera, lambda: data, len(data)))

    def drop(self, frame: Frame) -> None:
        """Forget a frame that was recorded and then not sent: no answer to it is expected."""
        self._forget(frame.id.hex())

    def _forget(self, id_: str) -> None:
        """Forget a sent frame by its hexadecimal id, unless a service has answered it."""
        sent = self._frames.get(id_)
        if sent and sent.services:  # it arrived, although its acknowledgement did not
            return
        self._sent -= 1
        if sent:
            del self._frames[id_]
            self._watched -= 1
            self._bytes -= sent.size

    async def finish(self) -> int:
        """Wait for missing answers, print the outcome, and return how many of the watched frames have no answer.

        Watched are the first ``MAX_DRAWINGS`` frames. It waits until all of them are answered, or no new answer has
        come for ``QUIET_S``. Raises InvalidFieldError if a drawing cannot be written.
        """
        assert self._task  # noqa: S101  # it was started
        while self._answered < self._watched and not self._task.done():
            self._arrival.clear()
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._arrival.wait()
            except TimeoutError:
                break
        drained = asyncio.create_task(self._answers.join())
        await asyncio.wait({drained, self._task}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, self._task):
            task.cancel()  # without effect on a task that has ended
        for outcome in await asyncio.gather(drained, self._task, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        console().print(
            clean(f"{self._drawn} {'answer' if self._drawn == 1 else 'answers'} drawn in {self._folder}"), markup=False
        )
        if self._watched < self._sent:
            warn(f"only answers to the first {self._watched} of {self._sent} frames were drawn")
        if unanswered := self._watched - self._answered:
            warn(f"{unanswered} of {self._watched} frames had no answer within {QUIET_S:g} s of the last one")
        return unanswered

    def _answer(self, delivery: Delivery[Result]) -> None:
        """Queue a result for drawing, if it is a service's first answer to a sent frame."""
        result, service = delivery.body, delivery.names["service"]
        sent = self._frames.get(result.id)
        if sent is None or service in sent.services:
            return
        self._answered += not sent.services
        sent.services.add(service)
        self._arrival.set()
        if self._accepted < MAX_DRAWINGS:
            self._accepted += 1
            self._answers.put_nowait((sent, result))

    async def _draw_all(self) -> None:
        """Draw queued answers, until it is cancelled."""
        while True:
            sent, result = await self._answers.get()
            path = self._folder / drawing_name(sent.sequence, sent.name, result.service)
            if await asyncio.to_thread(_draw, path, sent.read, result):
                self._drawn += 1
            self._answers.task_done()


def _draw(path: Path, read: Callable[[], bytes], result: Result) -> bool:
    """Write one drawing; return whether the frame could be read. Raises InvalidFieldError if it cannot be written."""
    from halimede.frames import encodings
    from halimede.frames.drawing import draw_jpeg, result_layers
    from halimede.frames.orientation import upright
    from halimede.frames.payloads import open_payload

    try:
        pixels = encodings.decode(open_payload(upright(read()), ""))
    except (DecodeError, OSError):
        return False
    write_file(OPTION, path, draw_jpeg(pixels, result_layers(result.prediction, result.by, result.edge)))
    return True
