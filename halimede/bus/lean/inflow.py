"""What has arrived, cut into packets. A large one gets a buffer of its own length, which the socket fills: its payload
is a view of that, never a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from halimede.bus.beside import VARINT_BYTES
from halimede.bus.lean.reading import TOO_LARGE, MalformedError

#: bytes of the buffer in which packets come that are not large: of a large one so much is copied at most
ROOM = 16 * 1024
#: a packet of this size (bytes) has a buffer of its own
LARGE = 8 * 1024


class Inflow:
    """Give ``room`` to the socket, tell how much of it was ``filled``, and get whole packets.

    ``limit``: bytes of the largest packet that may come. Memory is taken for a packet as announced, so never for more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shared = memoryview(bytearray(ROOM))
        self._begin = self._end = 0
        self._own: memoryview | None = None
        self._own_first = self._own_end = 0

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._own is not None:
            return self._own[self._own_end :]
        return self._shared[self._end :]

    @property
    def partial(self) -> bool:
        """Whether part of a packet is here."""
        return self._own is not None or self._end > self._begin

    def filled(self, count: int) -> Iterator[tuple[int, memoryview, bool]]:
        """Take note of ``count`` bytes in ``room``; give the first byte and the body of each packet that is whole.

        The third says whether the body's buffer is its own; any other is used again, and whoever keeps it copies it.
        Raises MalformedError.
        """
        if self._own is not None:
            self._own_end += count
            if self._own_end == len(self._own):
                own, self._own = self._own, None
                yield self._own_first, own, True
            return
        self._end += count
        yield from self._whole()

    def _whole(self) -> Iterator[tuple[int, memoryview, bool]]:
        shared = self._shared
        while self._end - self._begin >= 2:
            first, at, length = shared[self._begin], self._begin + 1, 0
            for shift in range(0, 7 * VARINT_BYTES, 7):
                if at == self._end:
                    self._make_room()
                    return  # the length is not whole yet
                byte = shared[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            else:
                raise MalformedError("a packet's length takes more than four bytes")
            if at - self._begin + length > self._limit:
                raise MalformedError(
                    f"a packet of {length} bytes, over our limit of {self._limit}",
                    TOO_LARGE,
                )
            end = at + length
            if end <= self._end:
                self._begin = end
                yield first, shared[at:end], False
            elif length >= LARGE:
                self._own_first, self._own = first, memoryview(bytearray(length))
                self._own_end = self._end - at
                self._own[: self._own_end] = shared[at : self._end]
                self._begin = self._end = 0
                return
            else:
                break
        self._make_room()

    def _make_room(self) -> None:
        """Move what is left to the front: less than a large packet and its head."""
        left = self._end - self._begin
        if left and self._begin:
            self._shared[:left] = bytes(self._shared[self._begin : self._end])
        self._begin, self._end = 0, left
