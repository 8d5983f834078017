"""A sample on its way to the worker that was chosen for it, and what the broker says of that."""

from __future__ import annotations

import asyncio
from functools import partial

from halimede.bus import Bus
from halimede.bus.reasons import judge
from halimede.errors import DisconnectedError, RefusedError, TooLargeError
from halimede.frames.asks import Ask
from halimede.frames.channel import Channel
from halimede.frames.circuit import Circuit
from halimede.frames.credits import MAX_WORKERS, Credits
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.recent import Recent
from halimede.frames.way import Way
from halimede.messages import Frame
from halimede.topic import Address


class Sender:
    """Publishes samples. What became of one stands in its Ask, whose ``turn`` is set should nobody have it."""

    def __init__(self, bus: Bus, channel: Channel, credits_: Credits, circuit: Circuit, way: Way) -> None:
        self._bus = bus
        self._channel = channel
        self._credits = credits_
        self._circuit = circuit
        self._way = way
        self._answers = channel.answers
        self._addresses: Recent[str, Address[Frame]] = Recent(MAX_WORKERS)

    def send(self, ask: Ask) -> bool:
        """Publish a sample with the time that it has left, unless that has to wait; whether it is published.

        Raises OffloadError if it cannot be sent at all, as ``send_later`` does.
        """
        ask.refused, ask.broke, ask.owed = None, False, True
        left = max(ask.until - asyncio.get_running_loop().time(), 0.001)
        body = ask.body(self._channel.service, self._channel.worker, left)
        beside = ask.beside(self._answers, left)
        try:
            taken = self._bus.publish_now(self._to(ask.worker), body, tail=ask.data, **beside)
        except TooLargeError as error:
            raise OffloadError(Reason.ERROR, str(error)) from error
        if taken is None:
            return False
        ask.taken = taken
        taken.add_done_callback(partial(self._taken, ask))
        return True

    async def send_later(self, ask: Ask) -> None:
        """Publish a sample as soon as there is a place among those that the broker has not answered."""
        left = max(ask.until - asyncio.get_running_loop().time(), 0.001)
        body = ask.body(self._channel.service, self._channel.worker, left)
        body.data = ask.data
        beside = ask.beside(self._answers, left)
        try:
            heard = await self._bus.publish(self._to(ask.worker), body, timeout_s=left, **beside)
        except DisconnectedError:
            ask.broke = True
            ask.turn.set()
        except (RefusedError, TooLargeError) as error:
            raise OffloadError(Reason.ERROR, str(error)) from error
        else:
            self._way.carried(len(ask.data))
            self._listened(ask, heard=heard)

    def gave_up(self, ask: Ask) -> None:
        """Draw conclusions on the way from a sample that is out and given up."""
        if ask.owed and asyncio.get_running_loop().time() >= ask.until:
            self._way.late(len(ask.data), self._bus.owed)

    def _to(self, worker: str) -> Address[Frame]:
        """Return where a worker is asked. Names are checked once."""
        address = self._addresses.get(worker)
        if address is None:
            address = self._channel.to(worker)
            assert address is not None  # noqa: S101  # whoever chose it has looked
            self._addresses.put(worker, address)
        return address

    def _taken(self, ask: Ask, taken: asyncio.Future[int]) -> None:
        """The broker has a sample, or it is not known whether it does."""
        error = taken.exception()
        if ask.taken is not taken:
            return  # that attempt is over
        if error is None:
            self._way.carried(len(ask.data))
            try:
                self._listened(ask, heard=judge(self._to(ask.worker).text, taken.result()))
            except RefusedError as refused:
                ask.refused = OffloadError(Reason.ERROR, str(refused))
                ask.refused.__cause__ = refused
        ask.broke = error is not None
        if ask.broke or ask.refused:
            ask.turn.set()

    def _listened(self, ask: Ask, *, heard: bool) -> None:
        """Somebody has a sample, or the broker knows of nobody who does."""
        ask.owed = False
        if heard or ask.reply:
            ask.sent = True
            return
        if ask.worker:
            self._credits.remove(ask.worker)
        else:
            self._circuit.nobody(asyncio.get_running_loop().time())
            ask.refused = OffloadError(Reason.NO_CLOUD, "no cloud worker listens")
        ask.turn.set()
