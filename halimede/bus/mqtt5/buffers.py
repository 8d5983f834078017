"""The two buffers of a connection: received bytes, divided into packets, and packets to send.

A large packet that has not arrived whole gets a separate buffer of its length, which the socket fills: its payload is a
view of that buffer, not a copy. Parts of sent packets are passed to the socket unchanged, many in one call.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import sys
import termios
from collections import deque
from collections.abc import Callable
from itertools import islice
from time import monotonic

from halimede.bus.mqtt5.decoder import TOO_LARGE, VARINT_BYTES, MalformedError
from halimede.bus.mqtt5.keepalive import KeepAlive
from halimede.errors import cause_of

#: bytes of the shared buffer for packets that are not large: at most so much of a large packet is copied
SHARED_BYTES = 16 * 1024
#: a packet from this size (bytes) on gets a separate buffer, unless it has arrived whole in the shared one
LARGE = 8 * 1024


class ReceiveBuffer:
    """Receives bytes: the socket fills ``free``, and ``take_packets`` returns complete packets.

    ``limit``: most bytes of an allowed packet. A packet's memory is allocated as announced, so never above it.

    Attributes:
        free: buffer for the next bytes; never empty.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shared = self.free = memoryview(bytearray(SHARED_BYTES))
        #: bytes at the front of the shared buffer: part of a packet
        self._partial = 0
        #: the body of an incomplete large packet, and its first byte
        self._large: memoryview | None = None
        self._large_first = 0

    def take_packets(self, count: int) -> tuple[list[tuple[int, bytes | memoryview]], MalformedError | None]:
        """Record ``count`` received bytes in ``free``; return the complete packets, and the error after them, if any.

        Each packet is its first byte, and all that follows its length: bytes, or a view if it has a separate buffer.
        The caller raises the error after it has handled the packets before it.
        """
        if self._large is not None:
            self.free = self.free[count:]
            if len(self.free):
                return [], None
            body, self._large, self.free = self._large, None, self._shared
            return [(self._large_first, body)], None
        shared, begin, end = self._shared, 0, self._partial + count
        packets: list[tuple[int, bytes | memoryview]] = []
        while begin < end:
            # after the first byte its length: seven bits in each byte, the low ones first, and 0x80 in all but the last
            at, length, shift = begin + 1, 0, 0
            while at < end:
                byte = shared[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift == 7 * VARINT_BYTES:
                    return packets, MalformedError("a packet's length takes more than four bytes")
            else:
                break  # the length is not complete yet
            after = at + length
            if after - begin > self._limit:
                text = f"a packet of {length} bytes, above the limit of {self._limit}"
                return packets, MalformedError(text, TOO_LARGE)
            if after <= end:
                packets.append((shared[begin], bytes(shared[at:after])))
                begin = after
            elif length >= LARGE:
                self._large, self._large_first = memoryview(bytearray(length)), shared[begin]
                self._large[: end - at] = shared[at:end]
                self._partial, self.free = 0, self._large[end - at :]
                return packets, None
            else:
                break
        # less than a large packet and its head remains: move it to the front
        self._partial = end - begin
        if begin:
            shared[: self._partial] = bytes(shared[begin:end])
        self.free = shared[self._partial :]
        return packets, None


#: most parts in one call: the system accepts 1,024
PARTS = 256
#: bytes from which parts are sent at once: waiting to send them with others gains nothing
FLUSHED = 8 * 1024


class SendBuffer:
    """Bytes to write to a non-blocking socket. The transport's slots bound it, not this class.

    All parts of one iteration of the event loop are sent at its end in one call; what the socket does not accept
    follows as soon as it accepts more. True while parts wait. ``watch``: is told when bytes are sent. ``failed`` is
    called with the reason when sending is no longer possible.

    Attributes:
        blocked: whether the socket accepts no more bytes now.
        put_bytes, sent_bytes: bytes added, and bytes accepted by the socket, since the beginning.
        arrived_bytes: bytes that had arrived at the peer's system at the last call of ``has_progress``; approximate
            with TLS.
        pending: pairs of a position and a callback for when the bytes up to it are accepted.

    """

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, watch: KeepAlive, failed: Callable[[str], None]
    ) -> None:
        self.blocked = False
        self.put_bytes = self.sent_bytes = self.arrived_bytes = 0
        self.pending: deque[tuple[int, Callable[[], None]]] = deque()
        self._parts: deque[bytes | memoryview] = deque()
        self._sock = sock
        # TLS accepts one part at a time
        self._one = isinstance(sock, ssl.SSLSocket)
        self._loop = loop
        self._watch = watch
        self._failed = failed
        self._scheduled = self._closed = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, *parts: bytes | memoryview, sent: Callable[[], None] | None = None) -> bool:
        """Append parts; return whether the connection is up. ``sent``: called once the socket has accepted them."""
        if self._closed:
            return False
        before = self.put_bytes
        for part in parts:
            if size := len(part):
                self._parts.append(part)
                self.put_bytes += size
        if sent:
            self.pending.append((self.put_bytes, sent))
        if self.blocked:
            return True
        if self.put_bytes - before >= FLUSHED:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Write as much as the socket accepts. A broken connection is reported to ``failed``, not raised."""
        self._scheduled = False
        if self._closed or not self._parts:
            return
        self._watch.spoke = monotonic()
        parts, whole = self._parts, True
        try:
            while parts:
                if self._one or len(parts) == 1:
                    count = self._sock.send(parts[0])
                else:
                    count = self._sock.sendmsg(islice(parts, PARTS))
                self.sent_bytes += count
                while parts and count >= len(parts[0]):
                    count -= len(parts.popleft())
                if count:
                    parts[0] = memoryview(parts[0])[count:]  # slicing a view does not copy
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            whole = False
        except OSError as error:
            self._failed(cause_of(error))
            return
        except Exception as error:  # its owner has released a view: it would block all later parts
            self._failed(f"a packet cannot be sent: {type(error).__name__}: {error}")
            raise
        while self.pending and self.pending[0][0] <= self.sent_bytes:
            self.pending.popleft()[1]()
        if whole == self.blocked and not self._closed:
            self._block(blocked=not whole)

    def has_progress(self) -> bool:
        """Whether the peer's system has acknowledged some bytes since the last call, and some remain."""
        before, unacked = self.arrived_bytes, bytearray(4)
        try:
            fcntl.ioctl(self._sock, termios.TIOCOUTQ, unacked)
        except OSError:
            return False  # this system does not provide the number
        self.arrived_bytes = self.sent_bytes - int.from_bytes(unacked, sys.byteorder)
        return before < self.arrived_bytes < self.put_bytes

    def close(self) -> None:
        """Discard what was not sent, and send no more."""
        self._closed = True
        self._loop.remove_writer(self._sock.fileno())

    def _block(self, *, blocked: bool) -> None:
        """Wait for the socket to accept bytes again, or stop waiting."""
        self.blocked = blocked
        if blocked:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _writable(self) -> None:
        """Write on: the socket accepts bytes again."""
        self._watch.alive = self._watch.waiting_since = monotonic()  # the peer has received some bytes
        self.flush()
