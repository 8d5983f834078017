"""A TLS client without a certificate, which finds out whether a broker accepts it and leaves no data unread there.

A broker that requires a certificate closes the connection as soon as it reads that there is none. What the client has
sent after that remains unread, and the broker's machine then resets the connection. A reset ends `kubectl port-forward`
and appears in logs of proxies. So this client sends its last flight record by record, and waits for the verdict first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

#: a record's header: type, version, length
HEADER = 5
#: the type of records that only announce encryption, which no broker answers
CHANGE_CIPHER_SPEC = 20
MAX_READ = 65_536


async def reply(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    context: ssl.SSLContext,
    host: str,
    packet: bytes,
    *,
    verdict_s: float,
) -> bytes:
    """Return what a broker replies to ``packet``, empty if it closes the connection.

    ``streams`` is a new connection without TLS, ``verdict_s`` the time for the broker to refuse the handshake, and the
    caller bounds the whole. Raises OSError, ssl.SSLError for a certificate that is not trusted.
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
    """Yield the records of what TLS would send at once."""
    while flight:
        end = HEADER + int.from_bytes(flight[3:HEADER], "big")
        yield flight[:end]
        flight = flight[end:]


async def _has_answer(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Whether the broker sends an alert, or closes the connection, in the middle of this client's flight."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(MAX_READ)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


async def _has_more(reader: asyncio.StreamReader, incoming: ssl.MemoryBIO) -> bool:
    data = await reader.read(MAX_READ)
    incoming.write(data)
    return bool(data)
