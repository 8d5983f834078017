"""Handing frames that a connection brings over to the worker, and knowing which of them are not answered yet."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from functools import partial

from halimede.bus import Delivery
from halimede.errors import DecodeError
from halimede.names import check_name
from halimede.tracing import read
from halimede.worker.sources.base import FrameSink
from halimede.worker.sources.poison_journal import PoisonJournal

#: cameras of one connection that are remembered
MOST_CAMERAS = 256


def session_id(client_id: str, cameras: Iterable[str], life: str) -> str:
    """Return the client id of a session for frames that outlives its connection.

    It is another one for other cameras and in another life of the service, since a session goes on with all that it
    was subscribed to.
    """
    text = "\0".join([life, *sorted(cameras)])
    return check_name("client id", f"{client_id}.{hashlib.sha256(text.encode()).hexdigest()[:8]}")


class FrameHandler:
    """Hands deliveries over. ``later``: each is acknowledged when its frame is answered, else once it is accepted.

    ``suspects`` are told of frames that come again: a worker died while it had them.

    Attributes:
        taken: frames that were handed over so far; ``refused``: those that the intake refused.
        cameras: of which anything came.

    """

    def __init__(self, intake: FrameSink, *, later: bool, suspects: PoisonJournal | None = None) -> None:
        self.taken = self.refused = 0
        self.cameras: set[str] = set()
        self._intake = intake
        self._later = later
        self._suspects = suspects or PoisonJournal(None)
        self._closed = False
        self._in_hand: set[object] = set()
        self._changed = asyncio.Event()

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        """Hand one over (a handler of ``Bus.subscribe``)."""
        if self._closed:
            # never acknowledged: it is for whoever goes on with the session, and the handler ends with its connection
            await asyncio.get_running_loop().create_future()
        mark = object()
        self._in_hand.add(mark)
        again = self._later and delivery.packet.duplicate
        answered = partial(self._answered, mark, delivery, again=again) if self._later else None
        try:
            if again:
                await self._suspects.begin(delivery.body)
            camera, properties = delivery.names["camera"], delivery.packet.properties
            parent = read(properties) if properties else None
            if len(self.cameras) < MOST_CAMERAS:
                self.cameras.add(camera)
            await self._intake.offer(delivery.body, camera, parent=parent, answered=answered)
        except BaseException as error:
            self.refused += int(isinstance(error, DecodeError))  # the bus puts it where operators see it
            if again:
                self._suspects.end(delivery.body)
            self._settle(mark)
            raise
        self.taken += 1
        if not self._later:
            self._settle(mark)

    def close(self) -> None:
        """Hand over no more."""
        self._closed = True

    async def idle(self) -> None:
        """Wait until all that was handed over is settled."""
        while self._in_hand:
            self._changed.clear()
            await self._changed.wait()

    def _answered(self, mark: object, delivery: Delivery[bytes], *, again: bool) -> None:
        delivery.done()
        if again:
            self._suspects.end(delivery.body)
        self._settle(mark)

    def _settle(self, mark: object) -> None:
        self._in_hand.discard(mark)
        self._changed.set()
