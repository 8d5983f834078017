"""A worker's counts in a small memory-mapped file, which survives the process.

A written count is in the kernel's page cache at once, so ``kill -9`` loses nothing (a power failure may). The next
worker of the same name and service uid continues the counts. Samples that its predecessor accepted and never answered
are counted as ``lost``. A file of another uid, or with implausible content, is renamed to ``ledger.bad``.

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

NAME = "ledger"
#: magic with the layout's version, the service's uid, the time of the first start in seconds since 1970
HEADER = struct.Struct("<8s64sQ")
MAGIC = b"HALLEDG1"
SLOTS = 32
BUCKETS = HIGHEST - LOWEST + 1
SIZE = HEADER.size + 8 * (SLOTS + 2 * BUCKETS)
#: above any worker's counts, and below the limit of a report
PLAUSIBLE = 1 << 56


class Latency(IntEnum):
    """The latencies that have a distribution."""

    EDGE = 0
    OFFLOAD = 1


class LedgerBusyError(InvalidFieldError):
    """Another process holds the ledger: its worker is still draining, or two workers have one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("HALIMEDE_STATE", str(folder), "another worker is using it: give each worker its own folder")


class Ledger:
    """The counts of one worker in ``folder``, bound to the uid of its service."""

    def __init__(self, folder: Path, uid: str) -> None:
        self._folder = folder
        self._uid = uid.encode().ljust(64, b"\0")
        #: why the counts are only in memory; empty: they are in the file
        self.trouble = ""
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._words: memoryview = memoryview(b"")
        self._started = ""
        self._followed: list[tuple[Count, Callable[[], int], int]] = []

    def __enter__(self) -> Self:
        """Open or create the file. Raises LedgerBusyError, and InvalidFieldError when it cannot be written.

        A full disk does not raise: see ``trouble``.
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
        """Count accepted samples without an answer as lost, and close."""
        self.catch_up()
        self.settle()
        self._retry()
        self._words.release()
        if self._map is not None:
            self._map.close()
        if self._fd >= 0:
            os.close(self._fd)

    def __getitem__(self, count: Count) -> int:
        return self._words[count]

    def add(self, count: Count, n: int = 1) -> None:
        """Add ``n`` to a count."""
        self._words[count] += n

    def count(self, counts: Iterable[Count]) -> None:
        """Add one to each count, in this order."""
        words = self._words
        for count in counts:
            words[count] += 1

    def follow(self, count: Count, total: Callable[[], int]) -> None:
        """Count along with another object's running total, from its present value."""
        self._followed.append((count, total, total()))

    def record(self, latency: Latency, milliseconds: float) -> None:
        """Record one duration."""
        self._words[SLOTS + latency * BUCKETS + bucket(milliseconds) - LOWEST] += 1

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
        """Return the counts for a report. ``inference_number`` counts answers that the broker has acknowledged."""
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
        """Add what the followed totals have counted since the last call."""
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
        self._words.release()
        if self._map is not None:
            self._map.close()
        self._map, self._words = mapped, memoryview(mapped)[HEADER.size :].cast("Q")

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
        first = SLOTS + latency * BUCKETS
        counts = enumerate(self._words[first : first + BUCKETS].tolist(), LOWEST)
        buckets = {str(index): count for index, count in counts if count}
        return Histogram(buckets=buckets) if buckets else None


def _open(path: Path, uid: bytes, fresh: bytes) -> tuple[int, bytes]:
    """Return a locked descriptor and the initial content: the file's, or ``fresh`` if that cannot be used."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerBusyError(path.parent) from error
        content = os.pread(fd, SIZE + 1, 0)
        if _makes_sense(content, uid):
            return fd, content
        if content:
            path.with_suffix(".bad").write_bytes(content)
            log.warning("ledger replaced", reason="of another service, or damaged", kept=f"{path}.bad")
        os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, fresh


def _makes_sense(content: bytes, uid: bytes) -> bool:
    if len(content) != SIZE:
        return False
    magic, whose, started = HEADER.unpack_from(content)
    words = struct.unpack_from(f"<{(SIZE - HEADER.size) // 8}Q", content, HEADER.size)
    plausible = words[Count.ACCEPTED] >= words[Count.ANSWERED] + words[Count.LOST] and max(words) < PLAUSIBLE
    return bool(magic == MAGIC and whose == uid and started < 1 << 33 and plausible)


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
