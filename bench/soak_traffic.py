"""The traffic of a soak: cameras that send small and large frames as fast as they are answered, and a consumer.

What is remembered is a byte for each frame, so that a million of them cost the soak itself a megabyte: a frame's id
carries its number.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import BusError
from halimede.frames.payloads import new_frame, pack
from halimede.messages import Frame, Result
from halimede.topic import Address

#: what may be unanswered at a time: small frames; a large one takes the place of so many
WINDOW, PLACES = 256, 16
#: seconds after which a frame without an answer takes no place any more; and between looks for such
GIVEN_UP, LOOK = 5.0, 0.5
#: height, width and colours of a large frame: 614,400 bytes as they are
LARGE = (400, 512, 3)
#: frames that one camera has in hand at a time; different large frames
SENDERS, KINDS = 8, 8
#: bytes of an id that tell one run from another; the others are the frame's number
RUN = 8
UNSEEN = 0


class Traffic:
    """The frames of one run: ``small`` and ``large`` of them, evenly mixed."""

    def __init__(self, small: int, large: int, pictures: Sequence[bytes]) -> None:
        self.small, self.large = small, large
        self.total = small + large
        #: frames that the broker took for somebody; results, and those of large frames
        self.sent = self.seen = self.seen_large = 0
        #: results that came again; those with another label than the same model gave before, and those with another
        #: label from another model
        self.repeated = self.contradicted = self.revised = 0
        self._pictures = pictures
        self._arrays = [enlarged(picture) for picture in pictures[:KINDS]]
        self._run = secrets.token_bytes(RUN)
        self._next = 0
        #: of each frame its first answer: 0, nothing yet; else the number of who answered and the label
        self._answers = bytearray(self.total)
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._known: list[tuple[str, str | None]] = []
        #: frames under way: when they were sent, and what place they take
        self._open: dict[int, tuple[float, int]] = {}
        self._taken = 0
        self._room = asyncio.Event()

    def is_large(self, number: int) -> bool:
        """Whether a frame is one of the large ones."""
        return number * self.large // self.total != (number + 1) * self.large // self.total

    async def hear(self, delivery: Delivery[Result]) -> None:
        """Take a result, as a consumer that drops repeated ids.

        A frame whose worker dies between the answer and its acknowledgement is answered again (ADR 16), perhaps by
        another model: the cloud was not there. The same model gives the same label.
        """
        id_ = bytes.fromhex(delivery.body.id)
        number = int.from_bytes(id_[RUN:])
        if id_[:RUN] != self._run or number >= self.total:
            raise ValueError(f"a result of a frame that nobody sent: {delivery.body.id}")
        answer = (delivery.body.by, delivery.body.label)
        if self._answers[number] != UNSEEN:
            self.repeated += 1
            by, label = self._known[self._answers[number] - 1]
            self.contradicted += label != answer[1] and by == answer[0]
            self.revised += label != answer[1] and by != answer[0]
            return
        if answer not in self._numbers:
            self._known.append(answer)
            self._numbers[answer] = len(self._known)
        self._answers[number] = self._numbers[answer]
        self.seen += 1
        self.seen_large += self.is_large(number)
        self._close(number)

    async def camera(self, name: str, settings: MqttSettings) -> None:
        """Send as one camera with a connection of its own, several frames in hand, until all frames are sent."""
        async with MqttBus(f"soak-{name}-{secrets.token_hex(4)}", replace(settings, client="lean")) as bus:
            await bus.wait_connected(30)
            async with asyncio.TaskGroup() as group:
                for _ in range(SENDERS):
                    group.create_task(self._send_all(name, bus))

    async def _send_all(self, name: str, bus: MqttBus) -> None:
        address = topics.CAMERA_FRAME.at(ns="default", camera=name)
        while self._next < self.total:
            await self._wait_for_room()
            if self._next >= self.total:  # another took the last one meanwhile
                return
            number, self._next = self._next, self._next + 1
            place = PLACES if self.is_large(number) else 1
            self._open[number] = (time.monotonic(), place)
            self._taken += place
            payload = pack(self._frame(name, number))
            while not await self._published(bus, address, payload):
                await asyncio.sleep(0.1)
            self.sent += 1

    async def _published(self, bus: MqttBus, address: Address[bytes], payload: bytes) -> bool:
        """Publish; what the broker did not take, or had nobody for, is to be sent again."""
        try:
            return await bus.publish(address, payload)
        except BusError:
            return False

    def _frame(self, camera: str, number: int) -> Frame:
        id_ = self._run + number.to_bytes(RUN)
        if self.is_large(number):
            return new_frame(self._arrays[number % len(self._arrays)], camera=camera, sequence=number, id_=id_)
        picture = memoryview(self._pictures[number % len(self._pictures)])
        return Frame(id=id_, camera=camera, sequence=number, encoding="png", data=picture)

    async def _wait_for_room(self) -> None:
        while self._taken >= WINDOW:
            self._room.clear()
            try:
                async with asyncio.timeout(LOOK):
                    await self._room.wait()
            except TimeoutError:
                self._give_up()

    def _give_up(self) -> None:
        """Let go of frames that died with the broker or the worker that had them in hand."""
        now = time.monotonic()
        for number in [number for number, (sent, _) in self._open.items() if now - sent > GIVEN_UP]:
            self._close(number)

    def _close(self, number: int) -> None:
        if known := self._open.pop(number, None):
            self._taken -= known[1]
            self._room.set()


def enlarged(picture: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return a picture of 8 x 8 as a camera of today would see it: the same, in many pixels and three colours."""
    pixels = np.asarray(Image.open(io.BytesIO(picture)))
    height, width, colours = LARGE
    grey = np.kron(pixels, np.ones((height // 8, width // 8), np.uint8))
    return np.repeat(grey[:, :, None], colours, axis=2)
