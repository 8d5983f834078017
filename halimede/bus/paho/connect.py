"""Opens an MQTT v5 connection with paho: off the loop, with deadlines; cleans up after a failure."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes

from halimede.bus.addresses import SocketAddress
from halimede.bus.credentials import Login
from halimede.bus.message import Packet
from halimede.bus.paho.connection import EncodedProperties, PahoTransport, ReadingClient, no_properties
from halimede.bus.settings import MqttSettings
from halimede.bus.transport import (
    Deliver,
    disable_socket_delays,
    end_of_certificate,
    tls_error,
    wait_for_connack,
)

#: seconds that a cancellation waits for a connect in its thread; after that it ends at its own deadline
CANCEL_PATIENCE = 1.0


async def connect(
    address: SocketAddress, settings: MqttSettings, client_id: str, will: Packet | None, deliver: Deliver
) -> PahoTransport:
    """Return a connection to one address on which the broker has accepted this client.

    ``will``: None: there is no will. ``deliver``: gets the received messages. Each of connection, TLS and CONNACK has
    the address's ``timeout_s``. Raises OSError, TimeoutError, DisconnectedError, or its subclass NotAllowedError if a
    retry needs a change first.
    """
    context, login = settings.tls_and_login()
    tls = PahoContext(context, address.endpoint.host) if context else None
    client = _client(settings, client_id, will, tls, login)
    client.connect_timeout = address.timeout_s
    try:
        await _connect_in_thread(client, address, settings)
    except OSError as error:
        if tls:
            tls.close()
        if isinstance(error, ssl.SSLError) or (tls and isinstance(error, ConnectionResetError)):
            raise tls_error(error, address.endpoint.host) from error
        raise
    link = PahoTransport(client, settings, deliver)
    if tls:
        link.certificate_end = end_of_certificate(tls.certificate())
    await wait_for_connack(link, link.accepted, timeout_s=address.timeout_s, secure=settings.secure)
    return link


def _client(
    settings: MqttSettings, client_id: str, will: Packet | None, tls: PahoContext | None, login: Login
) -> ReadingClient:
    """Return a client of paho with these settings, not connected yet."""
    version, protocol = CallbackAPIVersion.VERSION2, MQTTProtocolVersion.MQTTv5
    client = ReadingClient(version, client_id, protocol=protocol, manual_ack=True, reconnect_on_failure=False)
    client.patience_s = settings.keepalive_s
    client.max_inflight_messages = 0  # no limit of paho's, which would queue without a bound; the slots limit
    if login[0] is not None:
        client.username_pw_set(*login)
    if tls:
        client.tls_set_context(tls)  # type: ignore[arg-type]  # paho asks no more of a context
    if will:
        client.will_set(will.topic, bytes(will.payload), will.qos, will.retain, EncodedProperties(will))
    client.on_socket_open = _opened
    return client


def _opened(_: Client, __: Any, sock: Any) -> None:
    """Set the options of a new socket: a callback of paho."""
    disable_socket_delays(sock)


async def _connect_in_thread(client: ReadingClient, address: SocketAddress, settings: MqttSettings) -> None:
    """Connect and do the TLS handshake in a thread: paho blocks up to the address's time for each."""
    properties = no_properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = settings.session_s
    properties.ReceiveMaximum = settings.receive_maximum
    properties.MaximumPacketSize = settings.max_packet
    call = partial(
        client.connect,
        address.host,
        address.port,
        # the broker waits for 1.5 times this, and Mosquitto up to 6 s more: so it finds a hung client in time
        keepalive=max(1, settings.keepalive_s * 2 // 3),
        clean_start=not settings.session_s,
        properties=properties,
    )
    # a separate thread: a full default pool would delay reconnecting
    executor = ThreadPoolExecutor(1, thread_name_prefix="mqtt-connect")
    connecting = asyncio.get_running_loop().run_in_executor(executor, call)
    connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.shield(connecting)
    except asyncio.CancelledError:
        await asyncio.wait([connecting], timeout=CANCEL_PATIENCE)
        raise  # the client closes its socket when its last reference is deleted
    finally:
        executor.shutdown(wait=False)


class PahoContext:
    """A TLS context for paho, which connects to a numeric address: the certificate must have the name ``host``.

    Paho loses a socket whose handshake fails, so this class keeps it.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.check_hostname = context.check_hostname
        self._context = context
        self._host = host
        self._wrapped: ssl.SSLSocket | None = None

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        """Return the socket with TLS, before its handshake."""
        self._wrapped = self._context.wrap_socket(sock, **{**options, "server_hostname": self._host})
        return self._wrapped

    def certificate(self) -> Mapping[str, Any]:
        """Return the broker's certificate, as ``ssl`` gives it, after the handshake; empty for a closed socket."""
        wrapped = self._wrapped
        return (wrapped.getpeercert() if wrapped and wrapped.fileno() >= 0 else None) or {}  # paho may have closed it

    def close(self) -> None:
        """Close the socket, if one was made."""
        if self._wrapped:
            self._wrapped.close()
