"""One connection that a broker accepted: the interface of adapters, which ``connection.py`` uses.

A transport ends once and is never used again, so that no state of an old connection leaks into a new one. The functions
here help both MQTT clients to open one: socket options, the broker's answer, errors of refused clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from halimede.bus.message import Grants, Packet
from halimede.errors import BrokerNameError, DisconnectedError, NotAllowedError, cause_of

#: seconds that closing a connection may take
CLOSE_TIMEOUT = 2.0
#: most bytes of a packet if the broker sets no limit (MQTT v5, 2.1.4)
NO_PACKET_LIMIT = 268_435_455
#: acknowledges a QoS 1 message to the broker; returns whether its connection exists
Acknowledge = Callable[[], bool]
#: called with a message, its acknowledgement (None at QoS 0), and its packet identifier (0 at QoS 0)
Deliver = Callable[[Packet, Acknowledge | None, int], None]
#: congestion control within one machine, where nothing can be congested: most machines have it, without pacing
UNPACED = b"cubic"
#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
NAME_MISMATCHES = frozenset({62, 64})
#: hint for a connection that ends before CONNACK
NO_CERTIFICATE = "with TLS, a broker closes a connection like this if it requires a client certificate or refuses ours"


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a connection ended: ``reason`` in words.

    ``taken_over``: another client has this id. ``barred``: the broker refused this client, and a retry needs a change.
    ``explained``: the connection ended for a known reason: this client ended it, or the broker gave a reason.
    """

    reason: str
    taken_over: bool = False
    barred: bool = False
    explained: bool = False


class Slots:
    """A bounded number of publishes that the broker has not answered yet. Waiters get slots in order.

    ``count``: all slots.

    Attributes:
        free: slots that can be taken now; 0 while there are waiters.

    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot without waiting; return whether one was free."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def acquire(self) -> None:
        """Wait, without a deadline, for a slot and take it."""
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
                self.release()  # the slot was handed over in the same iteration of the event loop
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
    """The pending acknowledgement of a packet: a reason code.

    ``size``: the bytes of a publish that has a slot, else 0.
    """

    size = 0


class Transport(ABC):
    """One accepted connection. ``publish``, ``subscribe`` and ``unsubscribe`` send at once, in the order called.

    ``max_packet``: most bytes of a packet, until the broker sets its limit; ``window``: slots for publishes.
    """

    def __init__(self, max_packet: int, window: int) -> None:
        self.max_packet = max_packet
        #: the broker's limits, once it has accepted the client
        self.grants = Grants()
        #: host and port of the broker that accepted the client; empty: the adapter has only one broker
        self.where = ""
        #: Unix time at which the broker's certificate ends; None without TLS
        self.certificate_end: float | None = None
        #: whether the connection resumed the session of an earlier one
        self.resumed = False
        #: slots for publishes that the broker has not answered yet
        self.slots = Slots(window)
        #: whether reading pauses now, so that messages are left in the socket, and whether it ever did
        self.paused = self.was_paused = False
        #: bytes of the publishes in slots
        self.owed = 0
        #: set when the connection has ended, with the reason
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        #: pending acknowledgements by packet identifier
        self._answers: dict[int, PendingAck] = {}

    @abstractmethod
    def publish(self, packet: Packet) -> PendingAck:
        """Send a packet; the future returns the broker's reason code (at QoS 0: 0, once the packet is written).

        The future raises DisconnectedError if the connection ends before.
        """

    @abstractmethod
    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe; the future returns the granted QoS or a failure code, or raises DisconnectedError."""

    @abstractmethod
    def unsubscribe(self, filter_: str) -> PendingAck:
        """Unsubscribe; the future returns the reason code, or raises DisconnectedError."""

    @abstractmethod
    async def close(self, *, keep: bool = False) -> None:
        """Send pending packets, then disconnect so that the broker publishes the will. Takes ``CLOSE_TIMEOUT`` at most.

        ``keep``: the session stays for its lifetime; otherwise it ends.
        """

    def pause_reading(self) -> None:
        """Leave what arrives in the socket, the broker's answers as well: TCP then slows the broker down."""
        self.paused = self.was_paused = True

    def resume_reading(self) -> None:
        """Read on after a pause."""
        self.paused = False

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Break the connection at once, for a reason in words. Without effect after its end."""

    def end(self, ended: Ended) -> None:
        """Adapters call this when the connection has ended: all pending acknowledgements fail."""
        if self.ended.done():
            return
        self.ended.set_result(ended)
        for key in list(self._answers):
            self._fail_answer(key, f"the connection was lost: {ended.reason}")

    def publish_in_slot(self, packet: Packet, size: int) -> PendingAck:
        """Send a packet of ``size`` bytes in a slot that the caller has taken.

        The broker's answer or the end of the connection frees the slot. An error of ``publish`` frees it at once.
        """
        try:
            answer = self.publish(packet)
        except BaseException:
            self.slots.release()
            raise
        if answer.done():
            self.slots.release()
        else:
            answer.size = max(size, 1)  # an empty packet occupies a slot as well
            self.owed += answer.size
        return answer

    def _expect(self, key: int) -> PendingAck:
        """Return the pending answer of a packet identifier; it fails at once after the end of the connection."""
        answer = PendingAck()
        self._answers[key] = answer
        if self.ended.done():
            self._fail_answer(key, f"the connection was lost: {self.ended.result().reason}")
        return answer

    def _answer(self, key: int, reason: int) -> None:
        """Set the broker's answer to a packet identifier."""
        self._settle(self._answers.pop(key, None), reason)

    def _fail_answer(self, key: int, reason: str) -> None:
        """Fail the pending answer to a packet identifier with DisconnectedError."""
        self._settle(self._answers.pop(key, None), DisconnectedError(reason))

    def _settle(self, answer: PendingAck | None, outcome: int | DisconnectedError) -> None:
        """Set the outcome of a pending acknowledgement and free its slot; do nothing if ``answer`` is None."""
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
            answer.exception()  # the caller may have left: asyncio must not report the unread error


async def wait_for_connack(link: Transport, accepted: asyncio.Future[None], *, timeout_s: float, secure: bool) -> None:
    """Wait for the broker's CONNACK, which sets ``accepted``. ``secure``: with TLS.

    Raises DisconnectedError after ``timeout_s`` seconds, or the ``refusal_error`` if the connection ends before. On an
    error the connection is ended.
    """
    outcomes: list[asyncio.Future[Any]] = [accepted, link.ended]
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        link.abort("no answer")
        raise DisconnectedError("the broker accepted the connection but does not answer") from None
    except BaseException:
        link.abort("cancelled")
        raise
    if link.ended.done():
        raise refusal_error(link.ended.result(), secure=secure)


def refusal_error(ended: Ended, *, secure: bool) -> DisconnectedError:
    """Return the error for a connection that ended before the broker accepted this client. ``secure``: with TLS."""
    if ended.barred:
        return NotAllowedError(ended.reason)
    if ended.explained:
        return DisconnectedError(ended.reason)
    if secure:
        # with TLS 1.3 the broker's verdict on the client certificate arrives after the handshake
        return NotAllowedError(f"{ended.reason}: {NO_CERTIFICATE}")
    return DisconnectedError(
        f"{ended.reason} before the broker answered; a broker that requires TLS does this (use mqtts://)"
    )


def end_of_certificate(certificate: Mapping[str, Any] | None) -> float | None:
    """Return the Unix time at which a broker's certificate, as ``ssl`` gives it, ends; None: it is unknown."""
    return float(ssl.cert_time_to_seconds(certificate["notAfter"])) if certificate else None


def tls_error(error: OSError, host: str) -> NotAllowedError:
    """Return the error for a TLS handshake with ``host`` that failed."""
    if is_name_mismatch(error):
        return BrokerNameError(host)
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAllowedError(f"the broker's certificate is not accepted: {error.verify_message}")
    reason = getattr(error, "reason", None) or cause_of(error)
    return NotAllowedError(
        f"the TLS handshake with the broker failed ({reason}): "
        "it may not use TLS (use mqtt://), or it refuses our certificate"
    )


def is_name_mismatch(error: OSError) -> bool:
    """Whether the peer's certificate is trusted, but for other names than the one connected to."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in NAME_MISMATCHES


def disable_socket_delays(sock: socket.socket) -> None:
    """Switch off delays of the socket: Nagle's algorithm, and pacing within one machine.

    Nagle's algorithm with delayed acknowledgements adds 40 ms to a QoS 1 round trip. A machine's congestion control may
    pace (BBR): useful on a long route, but it costs a tenth of a sample's processor time within one machine.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is not None and is_within_machine(sock):
        with contextlib.suppress(OSError):  # not available on this system
            sock.setsockopt(socket.IPPROTO_TCP, option, UNPACED)


def is_within_machine(sock: socket.socket) -> bool:
    """Whether both ends of a socket have one address, so are on this machine. False for a closed socket."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # a broker may disconnect at once
        return False
