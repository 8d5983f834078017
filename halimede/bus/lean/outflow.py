"""What waits to leave: parts of packets, handed to the socket as they are, many in one call."""

from __future__ import annotations

import fcntl
import socket
import ssl
import sys
import termios
from collections import deque
from collections.abc import Callable
from itertools import islice

#: parts that are handed over in one call: the system takes 1,024 at most
PARTS = 256


class Outflow:
    """Bytes on their way into a socket that does not block. Bounded by the link's slots, not here."""

    def __init__(self, sock: socket.socket) -> None:
        self._parts: deque[bytes | memoryview] = deque()
        self._sock = sock
        # TLS takes one part at a time
        self._send: Callable[[], int] = self._send_one if isinstance(sock, ssl.SSLSocket) else self._send_many
        #: bytes put in and bytes taken by the socket, since the beginning
        self.put_bytes = self.sent_bytes = 0
        #: and those that had arrived at the last look; with TLS about so many
        self.arrived_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, part: bytes | memoryview) -> None:
        """Let a part follow what waits."""
        self._parts.append(part)
        self.put_bytes += len(part)

    def arrives(self) -> bool:
        """Whether some of it has arrived in the other side's system since the last look, and some has not."""
        before, held = self.arrived_bytes, bytearray(4)
        try:
            fcntl.ioctl(self._sock, termios.TIOCOUTQ, held)
        except OSError:
            return False  # not a system that tells
        self.arrived_bytes = self.sent_bytes - int.from_bytes(held, sys.byteorder)
        return before < self.arrived_bytes < self.put_bytes

    def flush(self) -> bool:
        """Hand over as much as the socket takes; return whether that was all. Raises OSError."""
        while self._parts:
            try:
                count = self._send()
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            self.sent_bytes += count
            self._drop(count)
        return True

    def _send_many(self) -> int:
        if len(self._parts) == 1:
            return self._sock.send(self._parts[0])
        return self._sock.sendmsg(list(islice(self._parts, PARTS)))

    def _send_one(self) -> int:
        return self._sock.send(self._parts[0])

    def _drop(self, count: int) -> None:
        parts = self._parts
        while count:
            first = parts[0]
            if len(first) > count:
                # of a view that is no copy
                parts[0] = memoryview(first)[count:]
                return
            count -= len(first)
            parts.popleft()
        while parts and not len(parts[0]):
            parts.popleft()
