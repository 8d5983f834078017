"""Opens a connection for both MQTT clients: options of its socket, the broker's answer, and errors of those refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from halimede.bus.settings import MqttSettings
from halimede.bus.transport import Ended, Transport
from halimede.errors import DisconnectedError, NotAllowedError

#: what is asked for on a way on which nothing can be congested: most machines have it, and it paces nothing
UNPACED = b"cubic"
NO_CERTIFICATE = "with TLS a broker ends a connection so when it wants a client certificate, or does not accept ours"


async def let_in(link: Transport, accepted: asyncio.Future[None], settings: MqttSettings) -> None:
    """Wait for the broker's word on a connection; without a good one raise DisconnectedError or NotAllowedError."""
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
        raise turned_away(link.ended.result(), secure=settings.secure)


def turned_away(ended: Ended, *, secure: bool) -> DisconnectedError:
    """Return the error for a connection that ended before the broker accepted us."""
    if ended.barred:
        return NotAllowedError(ended.reason)
    if secure:
        # with TLS 1.3 its word on our certificate comes after the handshake
        return NotAllowedError(f"{ended.reason}: {NO_CERTIFICATE}")
    return DisconnectedError(f"{ended.reason} before the broker had answered; one that wants TLS does that (mqtts://)")


def distrust(error: OSError) -> NotAllowedError:
    """Return the error for a TLS handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAllowedError(f"the broker's certificate is not accepted: {error.verify_message}")
    reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return NotAllowedError(
        f"there is no TLS with the broker ({reason}): it may not speak it (mqtt://), or not accept our certificate"
    )


def hasten(sock: socket.socket) -> None:
    """Switch off what holds a packet back: Nagle's algorithm, and within a machine pacing.

    Nagle's algorithm against delayed acknowledgements makes 40 ms of a QoS 1 round trip. A machine's congestion control
    may be one that paces (BBR): good on a long way, and a tenth of a sample's processor time where there is none.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is not None and within_machine(sock):
        with contextlib.suppress(OSError):  # not to be had here
            sock.setsockopt(socket.IPPROTO_TCP, option, UNPACED)


def within_machine(sock: socket.socket) -> bool:
    """Whether a socket's both ends have one address: then it is this machine's. Not so of one that has ended."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # a broker may hang up at once
        return False
