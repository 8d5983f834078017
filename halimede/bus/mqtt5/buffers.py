"""The two buffers of a connection: bytes that have arrived, cut into packets, and packets that wait to leave.

A large packet that arrives gets a buffer of its own length, which the socket fills: its payload is a view of that, and
never a copy. Parts of packets that leave are handed to the socket as they are, many in one call.
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

#: bytes of the buffer in which packets come that are not large: of a large one so much is copied at most
ROOM = 16 * 1024
#: a packet of this size (bytes) has a buffer of its own
LARGE = 8 * 1024


class ReceiveBuffer:
    """Buffer of what a socket receives: it fills ``room``, and ``filled`` returns the packets that are whole.

    ``limit``: bytes of the largest packet that may come. Memory is taken for a packet as announced, so never for more.

    Attributes:
        room: where the next bytes go; never empty.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shared = self.room = memoryview(bytearray(ROOM))
        #: bytes at the front of the shared buffer: part of a packet
        self._held = 0
        #: the body of a large packet of which a part is here, and its first byte
        self._large: memoryview | None = None
        self._large_first = 0

    def filled(self, count: int) -> tuple[list[tuple[int, bytes | memoryview]], MalformedError | None]:
        """Record ``count`` received bytes in ``room``; return the complete packets, and the error after them, if any.

        Of each packet: its first byte, and all that follows its length: a view of a buffer of its own where it is
        large. What is wrong is to be raised once the packets before it are handled.
        """
        if self._large is not None:
            self.room = self.room[count:]
            if len(self.room):
                return [], None
            body, self._large, self.room = self._large, None, self._shared
            return [(self._large_first, body)], None
        shared, begin, end = self._shared, 0, self._held + count
        packets: list[tuple[int, bytes | memoryview]] = []
        while end - begin >= 2:
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
                break  # the length is not whole yet
            after = at + length
            if after - begin > self._limit:
                text = f"a packet of {length} bytes, over our limit of {self._limit}"
                return packets, MalformedError(text, TOO_LARGE)
            if after <= end:
                packets.append((shared[begin], bytes(shared[at:after])))
                begin = after
            elif length >= LARGE:
                self._large, self._large_first = memoryview(bytearray(length)), shared[begin]
                self._large[: end - at] = shared[at:end]
                self._held, self.room = 0, self._large[end - at :]
                return packets, None
            else:
                break
        # less than a large packet and its head is left: to the front with it
        self._held = end - begin
        if self._held and begin:
            shared[: self._held] = bytes(shared[begin:end])
        self.room = shared[self._held :]
        return packets, None


#: parts that are handed over in one call: the system takes 1,024 at most
PARTS = 256
#: bytes put in at once that leave at once: nothing is gained by sending them along with others
FLUSHED = 8 * 1024


class SendBuffer:
    """Bytes on their way into a socket that does not block. Bounded by the link's slots, not here.

    All that is put in during one turn of the loop leaves at its end in one call; what the socket does not take then
    follows as soon as it takes more. ``failed`` gets the reason when nothing can leave any more.

    Attributes:
        blocked: whether the socket takes nothing now.
        put_bytes, sent_bytes: bytes put in, and bytes taken by the socket, since the beginning.
        arrived_bytes: those that had arrived when ``arrives`` was last called; with TLS about so many.
        pending: to be called once the bytes up to a number have been taken.

    """

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, watch: KeepAlive, failed: Callable[[str], None]
    ) -> None:
        self.blocked = False
        self.put_bytes = self.sent_bytes = self.arrived_bytes = 0
        self.pending: deque[tuple[int, Callable[[], None]]] = deque()
        self._parts: deque[bytes | memoryview] = deque()
        self._sock = sock
        # TLS takes one part at a time
        self._one = isinstance(sock, ssl.SSLSocket)
        self._loop = loop
        self._watch = watch
        self._failed = failed
        self._scheduled = self._closed = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, *parts: bytes | memoryview, sent: Callable[[], None] | None = None) -> bool:
        """Append parts; return whether the connection is up. ``sent``: called once they are written."""
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
        """Write as much as the socket takes."""
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
                    parts[0] = memoryview(parts[0])[count:]  # of a view that is no copy
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            whole = False
        except OSError as error:
            self._failed(error.strerror or str(error) or type(error).__name__)
            return
        except Exception as error:  # a view that its owner has released: it would be in the way of all that follows
            self._failed(f"a packet cannot be sent: {type(error).__name__}: {error}")
            raise
        while self.pending and self.pending[0][0] <= self.sent_bytes:
            self.pending.popleft()[1]()
        if whole == self.blocked and not self._closed:
            self._block(blocked=not whole)

    def arrives(self) -> bool:
        """Whether the peer's system has acknowledged some bytes since the last call, and some are left."""
        before, held = self.arrived_bytes, bytearray(4)
        try:
            fcntl.ioctl(self._sock, termios.TIOCOUTQ, held)
        except OSError:
            return False  # not a system that tells
        self.arrived_bytes = self.sent_bytes - int.from_bytes(held, sys.byteorder)
        return before < self.arrived_bytes < self.put_bytes

    def close(self) -> None:
        """Discard the buffer and stop writing."""
        self._closed = True
        self._loop.remove_writer(self._sock.fileno())

    def _block(self, *, blocked: bool) -> None:
        self.blocked = blocked
        if blocked:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _writable(self) -> None:
        self._watch.alive = self._watch.asked = monotonic()  # the other side has taken something
        self.flush()
