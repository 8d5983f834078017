"""The checks of ``doctor`` for the broker: its name, connection, TLS, protocol, access for strangers, speed and rules.

A check needs those before it to succeed. Each returns or yields rows (``Check``).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from halimede import topics
from halimede.bus.port import Bus
from halimede.bus.settings import MqttSettings
from halimede.bus.transport import is_name_mismatch
from halimede.cli.broker_address import START_IT
from halimede.cli.doctor import latency, machine, tls_stranger
from halimede.errors import BusError, InvalidFieldError, RefusedError
from halimede.health_checks.check import Check, ok, problem, warning
from halimede.messages import Synced

#: how hosts of this machine begin
LOOPBACK = ("127.", "::1", "localhost")
#: least days that a certificate should still be valid
EXPIRY_DAYS = 30
#: milliseconds of a round trip, in addition to the network's, that show Nagle's algorithm: it delays by 40
NAGLE_MS = 25.0
#: number of small frames that are measured
ROUND_TRIPS = 11
#: bytes of a camera's raw picture (640x480x3), how many are sent, and milliseconds from which one is too slow: a
#: quarter of the default deadline of the cloud's answer
LARGE, LARGE_ROUND_TRIPS, LARGE_MS = 921_600, 5, 500.0
#: bytes of topic and properties; seconds for one large frame
RESERVED, LARGE_PATIENCE_S = 1024, 10.0
#: connections that are made to measure the distance of the broker
DIALS = 3
#: seconds for the connection, and again for the reply
TIMEOUT_S = 5.0
#: seconds for a broker to refuse a client without certificate; seconds to close a connection
VERDICT_S, CLOSE_S = 0.5, 1.0
#: protocol levels of MQTT 3.1.1 and 5; types of packets, and the flag of a clean start
V311, V5 = 4, 5
CONNECT, CONNACK, CLEAN = 0x10, 0x20, 0x02
#: seconds of keep-alive in a CONNECT
KEEPALIVE_S = 10
#: reason code in a v5 CONNACK
UNSUPPORTED_VERSION = 0x84
#: bytes of a CONNACK of MQTT 3.1.1, without its header
V311_CONNACK_BYTES = 2


async def reach(settings: MqttSettings) -> AsyncGenerator[Check, None]:
    """Yield rows about the broker's name, connection, TLS and MQTT version; it ends at the first problem."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            addresses = await loop.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        yield problem("name", f"{settings.host}: {error}", "check the broker's host name and this machine's DNS")
        return
    yield ok("name", f"{settings.host} is {', '.join(sorted({str(address[4][0]) for address in addresses}))}")
    began = loop.time()
    try:
        _, writer = await open_stream(settings, None)
    except (OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else str(error)
        yield problem("connection", f"{settings.where}: {reason}", f"check the port and the firewall, or {START_IT}")
        return
    took_ms = (loop.time() - began) * 1000
    await _hang_up(writer)
    yield ok("connection", f"{settings.where} accepts connections, in {took_ms:.1f} ms")
    secure = await tls(settings)
    yield secure
    if secure.level == "problem":
        return
    yield await version(settings)


async def tls(settings: MqttSettings) -> Check:
    """Return the row about the broker's certificate, or about the lack of encryption."""
    if not settings.secure:
        if settings.host.startswith(LOOPBACK):
            return ok("encryption", "none, on this machine's loopback")
        do = "use mqtts:// and `halimede certs`, or a private network"
        return warning("encryption", f"none: the network to {settings.host} can read and change messages", do)
    try:
        _, writer = await open_stream(settings, settings.context())
    except InvalidFieldError as error:
        return problem("encryption", str(error), "create new credentials with `halimede certs`")
    except ssl.SSLCertVerificationError as error:
        if is_name_mismatch(error):
            return await _other_names(settings)
        do = "give the site's ca.crt with --credentials: a folder of a user of this broker's site"
        return problem("encryption", f"the broker's certificate is not valid: {error.verify_message}", do)
    except (OSError, TimeoutError) as error:
        do = "check that this port speaks TLS (mqtts://) and which client certificates the broker accepts"
        return problem("encryption", f"no TLS: {error}", do)
    certificate = writer.get_extra_info("peercert") or {}
    protocol = writer.get_extra_info("ssl_object").version()
    await _hang_up(writer)
    expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    days = (expires - datetime.now(UTC)).days
    what = f"{protocol}, the certificate is valid for {days} days"
    if days < EXPIRY_DAYS:
        return warning("encryption", what, "rotate it: `halimede certs`")
    return ok("encryption", what)


async def _other_names(settings: MqttSettings) -> Check:
    """Return the row of a trusted certificate for other names than the host's, with these names."""
    context = settings.context()
    assert context is not None  # noqa: S101  # the connection was over TLS
    context.check_hostname = False
    names = ""
    with contextlib.suppress(OSError, TimeoutError):
        _, writer = await open_stream(settings, context)
        certificate = writer.get_extra_info("peercert") or {}
        names = ", ".join(str(name) for _, name in certificate.get("subjectAltName", ()))
        await _hang_up(writer)
    what = f"the broker's certificate does not have the name {settings.host}" + (f"; it has {names}" if names else "")
    do = f"connect to a name that it has, or add this one: `halimede certs add --broker {settings.host} SITE`"
    return problem("encryption", what, do)


async def version(settings: MqttSettings) -> Check:
    """Return the row about the broker's support of MQTT v5."""
    name = "protocol"
    try:
        speaks = await speaks_v5(settings, settings.context())
    except (OSError, TimeoutError) as error:
        return problem(name, f"no reply to MQTT: {str(error) or 'timeout'}", "check that this is an MQTT broker")
    if speaks is None:
        if settings.secure:
            return ok(name, "the broker replies only to clients with a certificate")
        return problem(name, "the broker closes the connection without a reply", "check the port")
    if not speaks:
        return problem(name, "the broker supports only MQTT 3.1.1", "use a broker with MQTT v5, such as Mosquitto 2")
    return ok(name, "MQTT v5")


async def strangers(settings: MqttSettings) -> Check:
    """Return the row about clients without credentials, which a broker should refuse."""
    name = "strangers"
    context = _stranger(settings)
    try:
        accepted = await _accepts(settings, context) if context else (await greet(settings, None, V5)).accepted
    except (OSError, TimeoutError):
        accepted = False
    if not accepted:
        return ok(name, "a client without credentials is refused")
    do = "set `allow_anonymous false` and a password or certificates for each user: docs/security.md"
    return warning(name, "clients can connect without credentials", do)


async def _accepts(settings: MqttSettings, context: ssl.SSLContext) -> bool:
    """Whether a broker accepts a TLS client without a certificate. Raises OSError and TimeoutError."""
    reader, writer = await open_stream(settings, None)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            streams, packet = (reader, writer), _connect(V5)
            answer = await tls_stranger.reply(streams, context, settings.host, packet, verdict_s=VERDICT_S)
    finally:
        await _hang_up(writer)
    # its type; after its length and flags, the reason code 0
    return answer[:1] == bytes([CONNACK]) and answer[3:4] == b"\x00"


async def speed(bus: Bus, settings: MqttSettings) -> AsyncGenerator[Check, None]:
    """Measure the round trips of small and large frames; yield rows about them, and about causes on this machine.

    ``settings`` are those of the broker that ``bus`` is connected to.
    """
    name = "round trip"
    try:
        network_ms = await _distance_ms(settings)
        times = await latency.round_trips(bus, ROUND_TRIPS)
    except RefusedError as error:
        yield problem("rights", str(error), "use the credentials of an operator")
        return
    except (BusError, OSError, TimeoutError) as error:
        yield problem(name, str(error), "see the broker's log")
        return
    typical, best = median(times), min(times)
    what = f"{typical:.2f} ms until the broker acknowledges (best {best:.2f} ms)"
    if best - network_ms >= NAGLE_MS:
        do = "set `set_tcp_nodelay true` in the broker's configuration"
        yield warning(name, f"{what}, of which the network takes {network_ms:.2f} ms", do)
    elif network_ms >= NAGLE_MS:
        do = "the network is slow: increase deadlineMs by this time, or run a broker on the site (docs/deploy.md)"
        yield warning(name, f"{what}: the broker is {network_ms:.2f} ms away", do)
    else:
        yield ok(name, what)
    yield await _large(bus, best)
    if settings.host.startswith(LOOPBACK):
        for check in (await asyncio.to_thread(machine.check_allocator, settings.port), machine.check_congestion()):
            if check:
                yield check


async def _distance_ms(settings: MqttSettings) -> float:
    """Return the milliseconds of one round trip of the network: the shortest time to make a connection.

    Raises OSError and TimeoutError.
    """
    loop, times = asyncio.get_running_loop(), []
    for _ in range(DIALS):
        began = loop.time()
        _, writer = await open_stream(settings, None)
        times.append((loop.time() - began) * 1000)
        await _hang_up(writer)
    return min(times)


async def _large(bus: Bus, small_ms: float) -> Check:
    """Return the row about large frames: the time until the broker has acknowledged them, which it sends back as well.

    ``small_ms``: milliseconds of a small frame's round trip.
    """
    name = "large frames"
    if bus.max_packet < LARGE + RESERVED:
        return ok(name, "not measured: the broker does not accept 900 KB")
    do = "the link is slow: make uploads smaller with `encoding` and `maxBytes` (docs/uploads.md), raise deadlineMs"
    try:
        # a tenth first: a slow link must not be filled for minutes
        (tenth,) = await latency.round_trips(bus, 1, bytes(LARGE // 10), timeout_s=LARGE_PATIENCE_S)
        if tenth >= LARGE_MS:
            return warning(name, f"{tenth:.0f} ms for 90 KB to the broker and back", do)
        times = await latency.round_trips(bus, LARGE_ROUND_TRIPS, bytes(LARGE), timeout_s=LARGE_PATIENCE_S)
    except BusError as error:
        return warning(name, f"not delivered: {error}", do)
    typical = median(times)
    rate = LARGE / 1000 / max(min(times) - small_ms, 0.01)
    what = f"{typical:.2f} ms for 900 KB to the broker and back (best {min(times):.2f} ms, {rate:.0f} MB/s)"
    return warning(name, what, do) if typical >= LARGE_MS else ok(name, what)


async def rules(bus: Bus) -> Check:
    """Return the row about access rules: it tries to publish as GM, to a node that does not exist."""
    name = "access rules"
    try:
        await bus.publish(topics.SYNCED.at(node=f"doctor-{secrets.token_hex(8)}"), Synced(epoch=0, count=0))
    except RefusedError:
        return ok(name, "forbidden publishes are denied")
    except BusError as error:
        return problem(name, str(error), "see the broker's log")
    do = "give the broker the access rules of this version: docs/security.md"
    return warning(name, "no access rules: this user can publish to nodes as the global manager", do)


def _stranger(settings: MqttSettings) -> ssl.SSLContext | None:
    """Return a TLS context without this client's credentials; None: the broker has no TLS."""
    if not settings.secure:
        return None
    authority = settings.credentials.folder / "ca.crt" if settings.credentials else Path()
    return ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """The broker's reply to a CONNECT without credentials."""

    #: reason code, 0: accepted; None: it closed the connection without a reply
    code: int | None
    #: protocol level of the reply, ``V311`` or ``V5``
    level: int

    @property
    def accepted(self) -> bool:
        """Whether the broker accepted the client."""
        return self.code == 0


async def open_stream(
    settings: MqttSettings, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a new connection to the broker, with TLS if there is a context.

    Raises OSError (ssl.SSLError among them), and TimeoutError after ``TIMEOUT_S``.
    """
    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.open_connection(
            settings.host, settings.port, ssl=context, server_hostname=settings.host if context else None
        )


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection without a reset, which would end a `kubectl port-forward` to the broker."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()


async def greet(settings: MqttSettings, context: ssl.SSLContext | None, level: int) -> ProbeReply:
    """Return the broker's reply to a CONNECT without credentials of the protocol level ``level``.

    It shows how a broker replies to an older or unknown client. Raises OSError and TimeoutError.
    """
    reader, writer = await open_stream(settings, context)
    try:
        writer.write(_connect(level))
        async with asyncio.timeout(TIMEOUT_S):
            head = await reader.readexactly(2)
            body = await reader.readexactly(head[1]) if head[0] == CONNACK and head[1] < 0x80 else b""
    except (asyncio.IncompleteReadError, ConnectionResetError, ssl.SSLError):
        return ProbeReply(None, level)
    finally:
        await _hang_up(writer)
    if len(body) < V311_CONNACK_BYTES:
        return ProbeReply(None, level)
    return ProbeReply(body[1], V311 if len(body) == V311_CONNACK_BYTES else V5)


async def speaks_v5(settings: MqttSettings, context: ssl.SSLContext | None) -> bool | None:
    """Whether the broker supports MQTT v5; None if it replies to no version. Raises OSError and TimeoutError."""
    answer = await greet(settings, context, V5)
    if answer.code is not None:
        return answer.level == V5 and answer.code != UNSUPPORTED_VERSION
    older = await greet(settings, context, V311)
    return None if older.code is None else False


def _connect(level: int) -> bytes:
    """Return a CONNECT packet without credentials."""
    name = f"doctor-{secrets.token_hex(4)}".encode()
    properties = b"\x00" if level == V5 else b""
    variable = struct.pack(">H4sBBH", 4, b"MQTT", level, CLEAN, KEEPALIVE_S) + properties
    payload = struct.pack(">H", len(name)) + name
    return bytes([CONNECT, len(variable) + len(payload)]) + variable + payload
