"""The ledger: a worker's counts of frames in a small memory-mapped file, which survives the process.

A written count is in the kernel's page cache at once, so ``kill -9`` loses nothing (a power failure may). The next
worker of the same name and service uid continues the counts. Frames that its predecessor accepted and never answered
are counted as ``lost``. A file of another uid, or with implausible content, is copied to ``ledger.bad`` and begun anew.

The file's blocks are allocated before it is mapped: on a full disk, a write to a mapped page without a block would end
the process with SIGBUS. Without space the counts stay in memory, and are copied to the file once there is space.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Self

import structlog

from halimede.errors import InvalidFieldError
from halimede.messages import Count, Histogram, TaskInfo
from halimede.stats.histogram import HIGHEST, LOWEST, bucket
from halimede.system.files import FULL

log = structlog.get_logger()

#: name of the file in the worker's folder
NAME = "ledger"
#: the header: MAGIC, the service's uid, the time of the first start in seconds since 1970
HEADER = struct.Struct("<8s64sQ")
#: the first bytes of the file; the last digit is the layout's version
MAGIC = b"HALLEDG1"
#: counts after the header, 8 bytes each: one for each Count, and room for new ones
SLOTS = 32
#: buckets of a histogram, 8 bytes each: after the counts comes one histogram for each Latency
BUCKETS = HIGHEST - LOWEST + 1
#: bytes of the file
SIZE = HEADER.size + 8 * (SLOTS + 2 * BUCKETS)
#: above any worker's counts, and below the limit of a report
MAX_COUNT = 1 << 56


class Latency(IntEnum):
    """The latencies that have a histogram, with its position in the file."""

    #: from the acceptance of a frame to the answer of the edge's own model
    EDGE = 0
    #: from the request to the next tier to its reply
    OFFLOAD = 1


class LedgerBusyError(InvalidFieldError):
    """Another process holds the ledger: its worker is still draining, or two workers have one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("HALIMEDE_STATE", str(folder), "another worker is using it: give each worker its own folder")


class Ledger:
    """The counts of one worker, in the file ``ledger`` of ``folder``: a context manager, open inside its block.

    ``uid``: the uid of the worker's service, at most 64 bytes. Counts of a service with another uid are not continued.
    """

    def __init__(self, folder: Path, uid: str) -> None:
        self._folder = folder
        self._uid = uid.encode().ljust(64, b"\0")
        #: why the counts are only in memory; empty: they are in the file
        self.trouble = ""
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._cells: memoryview = memoryview(b"")
        self._started = ""
        #: counts of ``follow``: the count, the function of its total, and the total at the last ``catch_up``
        self._followed: list[tuple[Count, Callable[[], int], int]] = []

    def __enter__(self) -> Self:
        """Open or create the file, and count the frames that an earlier process left open as lost.

        On a full disk the counts are in memory, and ``trouble`` holds the reason. Raises LedgerBusyError if another
        process uses the file, InvalidFieldError if it cannot be written.
        """
        content = HEADER.pack(MAGIC, self._uid, int(datetime.now(UTC).timestamp())).ljust(SIZE, b"\0")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fd, content = _open(self._folder / NAME, self._uid, content)
            self._store(content)
        except OSError as error:
            if error.errno not in FULL:
                raise InvalidFieldError("HALIMEDE_STATE", str(self._folder), f"make it writable: {error}") from error
            self.trouble = f"its counts are in memory only: {self._folder}: {error.strerror}: make room"
            log.warning("ledger not written", folder=str(self._folder), error=error.strerror)
            self._use(mmap.mmap(-1, SIZE), content)
        self._started = _text(datetime.fromtimestamp(HEADER.unpack_from(content)[2], UTC))
        if lost := self.settle():
            log.warning("frames of a previous process lost", lost=lost)
        return self

    def __exit__(self, *_: object) -> None:
        """Count accepted frames without an answer as lost, and close the file."""
        self.catch_up()
        self.settle()
        self._retry()
        self._cells.release()
        if self._map is not None:
            self._map.close()
        if self._fd >= 0:
            os.close(self._fd)

    def __getitem__(self, count: Count) -> int:
        return self._cells[count]

    def add(self, count: Count, n: int = 1) -> None:
        """Add ``n`` (at least 0) to a count."""
        self._cells[count] += n

    def count(self, counts: Iterable[Count]) -> None:
        """Add one to each count, in this order."""
        cells = self._cells
        for count in counts:
            cells[count] += 1

    def follow(self, count: Count, total: Callable[[], int]) -> None:
        """Let a count grow with another object's ``total()``, which never falls, from its present value on."""
        self._followed.append((count, total, total()))

    def record(self, latency: Latency, milliseconds: float) -> None:
        """Count one duration in the histogram of a latency."""
        self._cells[SLOTS + latency * BUCKETS + bucket(milliseconds) - LOWEST] += 1

    @property
    def open(self) -> int:
        """The number of accepted frames that are neither answered nor lost."""
        return self[Count.ACCEPTED] - self[Count.ANSWERED] - self[Count.LOST]

    def settle(self) -> int:
        """Count open frames as lost; return their number. Call it only when nothing can answer them any more."""
        lost = self.open
        self.add(Count.LOST, lost)
        return lost

    def info(self) -> TaskInfo:
        """Return the counts as the worker reports them. ``inference_number``: answers that the broker acknowledged.

        Updates the counts of ``follow``, and writes counts that are only in memory to the file, if there is space now.
        """
        self.catch_up()
        self._retry()
        answered = self[Count.ANSWERED]
        now = _text(datetime.now(UTC))
        info = TaskInfo(
            upload_cloud_ratio=min(1.0, self[Count.UPLOADED] / answered) if answered else 0.0,
            start_time=self._started,
            current_time=now,
            update_time=now,
            edge_inference_number=max(0, answered - self[Count.CLOUD]),
            edge_latency=self._histogram(Latency.EDGE),
            offload_latency=self._histogram(Latency.OFFLOAD),
        )
        for count in Count:
            if count.field:
                setattr(info, count.field, self[count])
        return info

    def catch_up(self) -> None:
        """Add to each count with ``follow`` what its total has grown by since the last call."""
        for i, (count, total, before) in enumerate(self._followed):
            now = total()
            self.add(count, now - before)
            self._followed[i] = (count, total, now)

    def _store(self, content: bytes) -> None:
        """Allocate the file, map it, and write the counts there. Raises OSError."""
        os.posix_fallocate(self._fd, 0, SIZE)
        os.pwrite(self._fd, content, 0)
        self._use(mmap.mmap(self._fd, SIZE), content)

    def _use(self, mapped: mmap.mmap, content: bytes) -> None:
        """Use ``mapped`` for the counts from now on."""
        mapped[:] = content
        self._cells.release()
        if self._map is not None:
            self._map.close()
        self._map, self._cells = mapped, memoryview(mapped)[HEADER.size :].cast("Q")

    def _retry(self) -> None:
        """Move counts that are only in memory to the file, if there is space now."""
        if not self.trouble or self._map is None:
            return
        content = self._map[:]
        try:
            if self._fd < 0:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._fd, _ = _open(self._folder / NAME, self._uid, content)
            self._store(content)
        except (OSError, LedgerBusyError):
            return
        self.trouble = ""
        log.info("ledger written again", folder=str(self._folder))

    def _histogram(self, latency: Latency) -> Histogram | None:
        """Return the histogram of a latency; None if nothing was recorded."""
        first = SLOTS + latency * BUCKETS
        counts = enumerate(self._cells[first : first + BUCKETS].tolist(), LOWEST)
        buckets = {str(index): count for index, count in counts if count}
        return Histogram(buckets=buckets) if buckets else None


def _open(path: Path, uid: bytes, fresh: bytes) -> tuple[int, bytes]:
    """Return a locked descriptor and the initial content: the file's own, or ``fresh`` if it is not valid.

    Raises OSError; LedgerBusyError if another process has the lock.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerBusyError(path.parent) from error
        content = os.pread(fd, SIZE + 1, 0)
        if _is_valid(content, uid):
            return fd, content
        if content:
            path.with_suffix(".bad").write_bytes(content)
            log.warning("ledger replaced", reason="of another service, or damaged", kept=f"{path}.bad")
        os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, fresh


def _is_valid(content: bytes, uid: bytes) -> bool:
    """Whether a file's content is a ledger of this service, with counts that can be true."""
    if len(content) != SIZE:
        return False
    magic, owner, started = HEADER.unpack_from(content)
    cells = struct.unpack_from(f"<{(SIZE - HEADER.size) // 8}Q", content, HEADER.size)
    is_plausible = cells[Count.ACCEPTED] >= cells[Count.ANSWERED] + cells[Count.LOST] and max(cells) < MAX_COUNT
    return bool(magic == MAGIC and owner == uid and started < 1 << 33 and is_plausible)


def _text(moment: datetime) -> str:
    """Return a time in UTC as text with milliseconds: ``2026-01-31T12:00:00.000Z``."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
