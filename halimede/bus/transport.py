"""One connection that a broker accepted: the class that an adapter implements. ``connection.py`` opens them.

A link ends once and is never used again, so no state of an old connection can leak into a new one. The functions here
open one for both MQTT clients: options of its socket, the broker's answer, and errors of clients that are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from halimede.bus.message import Grants, Packet
from halimede.bus.settings import MqttSettings
from halimede.errors import DisconnectedError, NotAllowedError

#: seconds that closing a connection may take
CLOSE_TIMEOUT = 2.0
#: tells the broker that a QoS 1 message was handled; returns whether its connection is there
Acknowledge = Callable[[], bool]
#: gets a message, what acknowledges it (None at QoS 0), and its packet identifier
Deliver = Callable[[Packet, Acknowledge | None, int], None]
#: what is asked for on a way on which nothing can be congested: most machines have it, and it paces nothing
UNPACED = b"cubic"
NO_CERTIFICATE = "with TLS a broker ends a connection so when it wants a client certificate, or does not accept ours"


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a connection ended. ``taken_over``: another client has our id. ``barred``: the broker refused it.

    ``explained``: there is nothing to guess: we ended it ourselves, whatever for, or the broker said why it did.
    """

    reason: str
    taken_over: bool = False
    barred: bool = False
    explained: bool = False


class Slots:
    """A bounded number of publishes that the broker has not answered yet. Who waits for a slot gets one in order.

    Attributes:
        free: slots that can be taken now. There are none while somebody waits.

    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot without waiting; return whether there was one."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if self.take():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            else:
                self.release()  # it was handed over in the same turn of the loop
            raise

    def release(self) -> None:
        """Return a slot: to the first waiter, if there is one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


class PendingAck(asyncio.Future[int]):
    """The pending acknowledgement of a packet. ``size``: the bytes of a publish that has a slot."""

    size = 0


class Transport(ABC):
    """One accepted connection. ``publish``, ``subscribe`` and ``unsubscribe`` send at once, in the order called."""

    def __init__(self, max_packet: int, window: int) -> None:
        self.max_packet = max_packet
        self.grants = Grants()
        #: whether the broker had kept the session of an earlier connection
        self.resumed = False
        #: places for publishes that the broker has not answered yet
        self.slots = Slots(window)
        #: bytes of the publishes that have one
        self.owed = 0
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, PendingAck] = {}

    @abstractmethod
    def publish(self, packet: Packet) -> PendingAck:
        """Send a packet; the future brings the reason code, or DisconnectedError."""

    @abstractmethod
    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe; the future brings the granted QoS or a failure code, or DisconnectedError."""

    @abstractmethod
    def unsubscribe(self, filter_: str) -> PendingAck:
        """Unsubscribe; the future brings the reason code, or DisconnectedError."""

    @abstractmethod
    async def close(self, *, keep: bool = False) -> None:
        """Send what waits, then disconnect so that the broker publishes the will.

        ``keep``: the session stays for the time that it has; otherwise it ends.
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Break the connection at once. Without effect on one that has ended."""

    def end(self, ended: Ended) -> None:
        """Adapters call this when the connection has ended: all pending acknowledgements fail."""
        if self.ended.done():
            return
        self.ended.set_result(ended)
        for key in list(self._answers):
            self._unanswered(key, f"the connection was lost: {ended.reason}")

    def publish_in_slot(self, packet: Packet, size: int) -> PendingAck:
        """Send a packet in a slot that the caller has taken; it is free again once the broker has answered."""
        try:
            answer = self.publish(packet)
        except BaseException:
            self.slots.release()
            raise
        if answer.done():
            self.slots.release()
        else:
            answer.size = max(size, 1)  # an empty one has a slot as well
            self.owed += answer.size
        return answer

    def _expect(self, key: int) -> PendingAck:
        answer = PendingAck()
        self._answers[key] = answer
        if self.ended.done():
            self._unanswered(key, f"the connection was lost: {self.ended.result().reason}")
        return answer

    def _answer(self, key: int, reason: int) -> None:
        self._settle(self._answers.pop(key, None), reason)

    def _unanswered(self, key: int, reason: str) -> None:
        self._settle(self._answers.pop(key, None), DisconnectedError(reason))

    def _settle(self, answer: PendingAck | None, outcome: int | DisconnectedError) -> None:
        """Set the result of a pending acknowledgement and free its slot. Without one, do nothing."""
        if answer is None:
            return
        if answer.size:
            self.owed -= answer.size
            answer.size = 0
            self.slots.release()
        if answer.done():
            return
        if isinstance(outcome, int):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)
            answer.exception()  # whoever asked may have left: an error that nobody reads is none


async def wait_for_connack(link: Transport, accepted: asyncio.Future[None], settings: MqttSettings) -> None:
    """Wait for the broker's CONNACK. Raises DisconnectedError, or NotAllowedError if the broker refuses us."""
    outcomes: list[asyncio.Future[Any]] = [accepted, link.ended]
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        link.abort("no answer")
        raise DisconnectedError("the broker took the connection but does not answer") from None
    except BaseException:
        link.abort("cancelled")
        raise
    if link.ended.done():
        raise refusal_error(link.ended.result(), secure=settings.secure)


def refusal_error(ended: Ended, *, secure: bool) -> DisconnectedError:
    """Return the error for a connection that ended before the broker accepted us."""
    if ended.barred:
        return NotAllowedError(ended.reason)
    if secure:
        # with TLS 1.3 its word on our certificate comes after the handshake
        return NotAllowedError(f"{ended.reason}: {NO_CERTIFICATE}")
    return DisconnectedError(f"{ended.reason} before the broker had answered; one that wants TLS does that (mqtts://)")


def tls_error(error: OSError) -> NotAllowedError:
    """Return the error for a TLS handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAllowedError(f"the broker's certificate is not accepted: {error.verify_message}")
    reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return NotAllowedError(
        f"there is no TLS with the broker ({reason}): it may not speak it (mqtt://), or not accept our certificate"
    )


def disable_socket_delays(sock: socket.socket) -> None:
    """Switch off delays of the socket: Nagle's algorithm, and pacing within one machine.

    Nagle's algorithm against delayed acknowledgements makes 40 ms of a QoS 1 round trip. A machine's congestion control
    may be one that paces (BBR): good on a long way, and a tenth of a sample's processor time where there is none.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is not None and within_machine(sock):
        with contextlib.suppress(OSError):  # not to be had here
            sock.setsockopt(socket.IPPROTO_TCP, option, UNPACED)


def within_machine(sock: socket.socket) -> bool:
    """Whether both ends of a socket have one address: then both are on this machine. False for a closed socket."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # a broker may hang up at once
        return False
