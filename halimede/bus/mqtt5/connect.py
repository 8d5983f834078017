"""Opens an MQTT v5 connection: socket, TLS and CONNACK, each with a deadline; cleans up after a failure."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from halimede.bus.addresses import SocketAddress
from halimede.bus.message import Packet
from halimede.bus.mqtt5 import encoder
from halimede.bus.mqtt5.connection import Mqtt5Transport
from halimede.bus.settings import MqttSettings
from halimede.bus.transport import (
    Deliver,
    disable_socket_delays,
    end_of_certificate,
    tls_error,
    wait_for_connack,
)


async def connect(
    address: SocketAddress, settings: MqttSettings, client_id: str, will: Packet | None, deliver: Deliver
) -> Mqtt5Transport:
    """Return a connection to one address on which the broker has accepted this client.

    ``will``: None: there is no will. ``deliver``: gets the received messages. Each of connection, TLS and CONNACK has
    the address's ``timeout_s``. Raises OSError, TimeoutError, DisconnectedError, or its subclass NotAllowedError if a
    retry needs a change first.
    """
    context, login = settings.tls_and_login()
    hello = encoder.connect(
        client_id,
        keepalive_s=settings.keepalive_s,
        session_s=settings.session_s,
        receive_maximum=settings.receive_maximum,
        max_packet=settings.max_packet,
        login=login,
        will=will,
    )
    sock = await _dial(address)
    try:
        if context:
            async with _within(address.timeout_s, "no TLS handshake"):
                sock = await _secure(sock, context, address.endpoint.host)
        link = Mqtt5Transport(sock, settings, deliver)
        if isinstance(sock, ssl.SSLSocket):
            link.certificate_end = end_of_certificate(sock.getpeercert())
    except BaseException:
        sock.close()
        raise
    try:
        link.begin(hello)
    except BaseException:
        link.abort("not begun")
        raise
    await wait_for_connack(link, link.accepted, timeout_s=address.timeout_s, secure=settings.secure)
    return link


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    """Bound the block; TimeoutError says ``what`` did not happen."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:  # asyncio's own error has no text
        raise TimeoutError(f"{what} within {seconds:g} s") from error


async def _dial(address: SocketAddress) -> socket.socket:
    """Return a socket that is connected to the address. Raises OSError with the system's text, TimeoutError."""
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        async with _within(address.timeout_s, "no connection"):
            await asyncio.get_running_loop().sock_connect(sock, address.target)
        disable_socket_delays(sock)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError) and error.errno:  # asyncio's own text names the address, and not the cause
            raise OSError(error.errno, os.strerror(error.errno)) from error
        raise
    return sock


async def _secure(sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """Return the socket with TLS, after the handshake, which does not block the event loop.

    ``host``: the name that the certificate must have. Raises NotAllowedError, or OSError if the connection breaks.
    """
    try:
        secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except OSError as error:
        raise tls_error(error, host) from error
    try:
        while True:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                await _ready(secured, to_write=False)
            except ssl.SSLWantWriteError:
                await _ready(secured, to_write=True)
            else:
                return secured
    except OSError as error:
        secured.close()
        if isinstance(error, ssl.SSLError | ConnectionResetError):
            raise tls_error(error, host) from error
        raise
    except BaseException:
        secured.close()
        raise


async def _ready(sock: socket.socket, *, to_write: bool) -> None:
    """Wait until a socket is readable, or (``to_write``) writable."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    watch, ignore = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    watch(sock.fileno(), _settle, ready)
    try:
        await ready
    finally:
        ignore(sock.fileno())


def _settle(ready: asyncio.Future[None]) -> None:
    """Set the future's result, unless it is done."""
    if not ready.done():
        ready.set_result(None)
