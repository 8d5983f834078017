"""The first words of MQTT, spoken by hand: what a broker answers to a stranger, and to an older version's client.

The bus asks for MQTT v5 with our credentials and hides the rest; to find out why that fails, or who else would be let
in, one has to ask otherwise. Nothing is sent but a CONNECT.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import struct
from dataclasses import dataclass

from halimede.bus.settings import MqttSettings

#: seconds for the connection, and again for the answer
TIMEOUT_S = 5.0
V311, V5 = 4, 5
CONNECT, CONNACK, CLEAN = 0x10, 0x20, 0x02
KEEPALIVE_S = 10
#: in a v3.1.1 CONNACK, and in a v5 one
UNACCEPTABLE_VERSION, UNSUPPORTED_VERSION = 0x01, 0x84
V311_CONNACK_BYTES = 2


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """What came back: a reason code (0: let in) or None when the connection was closed without a word.

    ``level`` is the version in which the broker answered.
    """

    code: int | None
    level: int

    @property
    def let_in(self) -> bool:
        """Whether the client may stay."""
        return self.code == 0


async def open_stream(
    settings: MqttSettings, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect. Raises OSError (ssl.SSLError among them) and TimeoutError."""
    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.open_connection(
            settings.host, settings.port, ssl=context, server_hostname=settings.host if context else None
        )


async def greet(settings: MqttSettings, context: ssl.SSLContext | None, level: int) -> ProbeReply:
    """Send a CONNECT of a version without any credentials. Raises OSError and TimeoutError."""
    reader, writer = await open_stream(settings, context)
    try:
        writer.write(_connect(level))
        async with asyncio.timeout(TIMEOUT_S):
            head = await reader.readexactly(2)
            body = await reader.readexactly(head[1]) if head[0] == CONNACK and head[1] < 0x80 else b""
    except (asyncio.IncompleteReadError, ConnectionResetError, ssl.SSLError):
        return ProbeReply(None, level)
    finally:
        writer.close()
    if len(body) < V311_CONNACK_BYTES:
        return ProbeReply(None, level)
    return ProbeReply(body[1], V311 if len(body) == V311_CONNACK_BYTES else V5)


async def speaks_v5(settings: MqttSettings, context: ssl.SSLContext | None) -> bool | None:
    """Whether the broker speaks MQTT v5; None when it says too little to tell."""
    answer = await greet(settings, context, V5)
    if answer.code is not None:
        return answer.level == V5 and answer.code != UNSUPPORTED_VERSION
    older = await greet(settings, context, V311)
    return None if older.code is None else False


def _connect(level: int) -> bytes:
    name = f"doctor-{secrets.token_hex(4)}".encode()
    properties = b"\x00" if level == V5 else b""
    variable = struct.pack(">H4sBBH", 4, b"MQTT", level, CLEAN, KEEPALIVE_S) + properties
    payload = struct.pack(">H", len(name)) + name
    return bytes([CONNECT, len(variable) + len(payload)]) + variable + payload
