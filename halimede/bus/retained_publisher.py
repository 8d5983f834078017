"""Publishes a retained state: soon after a change, otherwise as a heartbeat, and again for a new connection."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from halimede.bus.port import PUBLISH_TIMEOUT, Bus
from halimede.errors import BusError, RefusedError
from halimede.topic import Address

M = TypeVar("M")
log = structlog.get_logger()

#: least and most seconds between two messages
LEAST_S, HEARTBEAT_S = 0.1, 2.0
#: seconds that a change must last: a single sample takes a credit and returns it, which is not worth a message
LASTS_S = 0.01


class RetainedPublisher(Generic[M]):
    """Publishes the latest state of one retained topic; ``touch`` marks it as changed.

    ``run`` until withdrawn or cancelled.

    Args:
        bus: the connection; the caller enters it.
        address: the topic.
        state: returns the state; None: there is none yet.
        farewell: returns what ``withdraw`` publishes before the retained message is cleared; None: nothing.
        same: whether two states are equal: then the second waits for the heartbeat.
        least_s: least seconds between two messages.
        heartbeat_s: most seconds between two messages.
        lasts_s: seconds that a change must last.
        poll_s: seconds between two checks of a state that changes without ``touch``; None: no checks.
        announced: whether the birth of each connection carries the state.
        timeout_s: seconds that an acknowledgement may take.

    """

    def __init__(
        self,
        bus: Bus,
        address: Address[M],
        state: Callable[[], M | None],
        *,
        farewell: Callable[[], M] | None = None,
        same: Callable[[M, M], bool] = operator.eq,
        least_s: float = LEAST_S,
        heartbeat_s: float = HEARTBEAT_S,
        lasts_s: float = LASTS_S,
        poll_s: float | None = None,
        announced: bool = False,
        timeout_s: float = PUBLISH_TIMEOUT,
    ) -> None:
        self._bus = bus
        self._address = address
        self._state = state
        self._farewell = farewell
        self._same = same
        self._least_s = least_s
        self._heartbeat_s = heartbeat_s
        self._lasts_s = lasts_s
        self._poll_s = poll_s
        self._announced = announced
        self._timeout_s = timeout_s
        self._changed = asyncio.Event()
        self._published: M | None = None
        self._withdrawn = False

    def touch(self) -> None:
        """Schedule a comparison of the state with the last published one."""
        self._changed.set()

    async def run(self) -> None:
        """Publish changes and heartbeats until withdrawn or cancelled."""
        if self._announced:
            self._published = self._state()
        else:
            self._bus.on_connect(self.republish)
            await self.publish()
        while not self._withdrawn:
            await asyncio.sleep(self._least_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s - self._least_s):
                    await self._wait_for_change()
            await self.publish()

    async def publish(self) -> None:
        """Publish the state now, unless there is none, the bus is disconnected, or the publisher is withdrawn.

        A failure is logged; the next heartbeat or connection publishes the state again.
        """
        if not self._bus.connected or self._withdrawn:
            return
        self._changed.clear()
        state = self._state()
        if state is None:
            return
        self._published = state  # after a failure the next connection or heartbeat publishes it
        try:
            await self._bus.publish(self._address, state, timeout_s=self._timeout_s)
        except BusError as error:
            level = log.warning if isinstance(error, RefusedError) else log.info
            level("state not published", topic=self._address.text, error=str(error))

    async def republish(self) -> None:
        """Schedule a publish even if the state is unchanged: a will cleared it, or the broker restarted."""
        self._published = None
        self._changed.set()

    async def withdraw(self) -> None:
        """Stop publishing and clear the retained message, after the farewell.

        A failure is logged: without a connection, the will has cleared the message.
        """
        self._withdrawn = True
        self._changed.set()
        try:
            if self._farewell:
                await self._bus.publish(self._address, self._farewell())
            await self._bus.clear(self._address)
        except BusError as error:
            log.info("state not cleared", topic=self._address.text, error=str(error))

    async def _wait_for_change(self) -> None:
        """Wait until withdrawn, or until the state differs from the published one.

        It is compared ``lasts_s`` after each ``touch``, and every ``poll_s``.
        """
        while not self._withdrawn:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._changed.wait()
                    if self._published is not None and self._lasts_s:
                        await asyncio.sleep(self._lasts_s)
            self._changed.clear()
            state, before = self._state(), self._published
            if state is not None and (before is None or not self._same(state, before)):
                return
