"""What has arrived, cut into packets. A large one gets a buffer of its own length, which the socket fills: its payload
is a view of that, never a copy.
"""

from __future__ import annotations

from halimede.bus.lean.reading import TOO_LARGE, VARINT_BYTES, MalformedError

#: bytes of the buffer in which packets come that are not large: of a large one so much is copied at most
ROOM = 16 * 1024
#: a packet of this size (bytes) has a buffer of its own
LARGE = 8 * 1024


class Inflow:
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
        """Take ``count`` bytes that are in ``room``; return the packets that are whole now, and what is wrong behind.

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
