"""A TLS client without a certificate that learns whether a broker accepts it, without a reset of the connection.

A broker that requires a certificate closes the connection as soon as it reads that there is none. If the client has
sent more, that remains unread, and the broker's machine resets the connection: this ends `kubectl port-forward` and
appears in logs of proxies. So the client sends its last messages of the handshake one by one, and waits after each.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

#: bytes of the header of a TLS record: type, version, length
HEADER = 5
#: the type of records that only announce encryption, which no broker answers
CHANGE_CIPHER_SPEC = 20
#: most bytes of one read
MAX_READ = 65_536


async def reply(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    context: ssl.SSLContext,
    host: str,
    packet: bytes,
    *,
    verdict_s: float,
) -> bytes:
    """Return the broker's reply to ``packet``; empty if it refuses the handshake or closes the connection.

    ``streams`` are reader and writer of a new connection without TLS. ``host``: the name that the broker's certificate
    must have. ``packet``: what is sent after the handshake, such as CONNECT. ``verdict_s``: seconds to wait after each
    message for the broker to refuse the handshake. There is no other deadline: the caller sets one. Raises OSError, and
    ssl.SSLError for a certificate that is not trusted.
    """
    reader, writer = streams
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
    done = False
    while not done:
        try:
            tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        *first, last = list(_records(outgoing.read())) or [b""]
        for record in first:
            writer.write(record)
            if record[0] != CHANGE_CIPHER_SPEC and await _has_answer(reader, verdict_s):
                return b""
        writer.write(last)
        if not done and not await _has_more(reader, incoming):
            return b""
    tls.write(packet)
    writer.write(outgoing.read())
    while await _has_more(reader, incoming):
        try:
            return tls.read(MAX_READ)
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return b""
    return b""


def _records(flight: bytes) -> Iterator[bytes]:
    """Yield the TLS records in bytes that would be sent at once."""
    while flight:
        end = HEADER + int.from_bytes(flight[3:HEADER], "big")
        yield flight[:end]
        flight = flight[end:]


async def _has_answer(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Whether the broker sends an alert, or closes the connection, within some seconds."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(MAX_READ)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


async def _has_more(reader: asyncio.StreamReader, incoming: ssl.MemoryBIO) -> bool:
    """Pass the next received bytes to TLS; return whether there are any, and not the end of the connection."""
    data = await reader.read(MAX_READ)
    incoming.write(data)
    return bool(data)
