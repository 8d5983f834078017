"""What waits to leave: parts of packets, handed to the socket as they are, many in one call."""

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

from halimede.bus.lean.watch import Watch

#: parts that are handed over in one call: the system takes 1,024 at most
PARTS = 256
#: bytes put in at once that leave at once: nothing is gained by sending them along with others
LARGE = 8 * 1024


class Outflow:
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
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, watch: Watch, failed: Callable[[str], None]
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
        """Let parts follow what waits; return whether the connection is there. ``sent``: called once they have left."""
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
        if self.put_bytes - before >= LARGE:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Hand over as much as the socket takes."""
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
        """Whether some of it has arrived in the other side's system since the last call, and some has not."""
        before, held = self.arrived_bytes, bytearray(4)
        try:
            fcntl.ioctl(self._sock, termios.TIOCOUTQ, held)
        except OSError:
            return False  # not a system that tells
        self.arrived_bytes = self.sent_bytes - int.from_bytes(held, sys.byteorder)
        return before < self.arrived_bytes < self.put_bytes

    def close(self) -> None:
        """Take nothing more, and hand nothing over any more."""
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
