"""Counts that outlive the process: a small memory-mapped file.

What a worker writes here is in the kernel's page cache at once, so a ``kill -9`` takes nothing of it back (a power
failure may). The next worker of that name and service uid goes on counting, and knows what its predecessor had
accepted and never answered: it is ``lost``, a number instead of a guess. A file of another uid, or one that makes no
sense, is set aside as ``ledger.bad``.
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

log = structlog.get_logger()

NAME = "ledger"
#: magic with the layout's version, the service's uid, the time of the first start in seconds since 1970
HEADER = struct.Struct("<8s64sQ")
MAGIC = b"HALLEDG1"
SLOTS = 32
BUCKETS = HIGHEST - LOWEST + 1
SIZE = HEADER.size + 8 * (SLOTS + 2 * BUCKETS)
#: more than any worker counts in its life, and less than a report can carry
PLAUSIBLE = 1 << 56


class Latency(IntEnum):
    """What has a distribution."""

    EDGE = 0
    OFFLOAD = 1


class LedgerBusyError(InvalidFieldError):
    """Another process holds the ledger: its worker is still draining, or two have one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("HALIMEDE_STATE", str(folder), "another worker is using it: give each worker its own folder")


class Ledger:
    """The counts of one worker in ``folder``, bound to the uid of its service."""

    def __init__(self, folder: Path, uid: str) -> None:
        self._folder = folder
        self._uid = uid.encode().ljust(64, b"\0")
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._words: memoryview = memoryview(b"")
        self._started = ""
        self._followed: list[tuple[Count, Callable[[], int], int]] = []

    def __enter__(self) -> Self:
        """Open or create the file. Raises LedgerBusyError, and InvalidFieldError when it cannot be written."""
        path = self._folder / NAME
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fd = _open(path, self._uid)
            self._map = mmap.mmap(self._fd, SIZE)
        except OSError as error:
            raise InvalidFieldError("HALIMEDE_STATE", str(self._folder), f"make it writable: {error}") from error
        self._words = memoryview(self._map)[HEADER.size :].cast("Q")
        seconds = HEADER.unpack_from(self._map)[2]
        self._started = _text(datetime.fromtimestamp(seconds, UTC))
        if lost := self.settle():
            log.warning("frames of a predecessor were lost", lost=lost)
        return self

    def __exit__(self, *_: object) -> None:
        """Count what was never answered as lost, and close."""
        self.catch_up()
        self.settle()
        self._words.release()
        if self._map is not None:
            self._map.close()
        os.close(self._fd)

    def __getitem__(self, count: Count) -> int:
        return self._words[count]

    def add(self, count: Count, n: int = 1) -> None:
        """Count."""
        self._words[count] += n

    def count(self, counts: Iterable[Count]) -> None:
        """Count one of each, in this order."""
        words = self._words
        for count in counts:
            words[count] += 1

    def follow(self, count: Count, total: Callable[[], int]) -> None:
        """Count along with somebody else's running total, from where it stands now."""
        self._followed.append((count, total, total()))

    def record(self, latency: Latency, milliseconds: float) -> None:
        """Count one duration."""
        self._words[SLOTS + latency * BUCKETS + bucket(milliseconds) - LOWEST] += 1

    @property
    def open(self) -> int:
        """Frames accepted, and neither answered nor lost."""
        return self[Count.ACCEPTED] - self[Count.ANSWERED] - self[Count.LOST]

    def settle(self) -> int:
        """Count what is open as lost; return how much that was. Call it only when nobody can answer it any more."""
        lost = self.open
        self.add(Count.LOST, lost)
        return lost

    def info(self) -> TaskInfo:
        """Return the counts as they are reported. ``inference_number`` counts answers that the broker has taken."""
        self.catch_up()
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
        """Count what was counted elsewhere since the last time."""
        for i, (count, total, before) in enumerate(self._followed):
            now = total()
            self.add(count, now - before)
            self._followed[i] = (count, total, now)

    def _histogram(self, latency: Latency) -> Histogram | None:
        first = SLOTS + latency * BUCKETS
        counts = enumerate(self._words[first : first + BUCKETS].tolist(), LOWEST)
        buckets = {str(index): count for index, count in counts if count}
        return Histogram(buckets=buckets) if buckets else None


def _open(path: Path, uid: bytes) -> int:
    """Return a locked descriptor of a file of the right form, made anew where the present one is of no use."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerBusyError(path.parent) from error
        content = os.pread(fd, SIZE + 1, 0)
        if _makes_sense(content, uid):
            return fd
        if content:
            path.with_suffix(".bad").write_bytes(content)
            log.warning("ledger begins anew", reason="of another service, or damaged", kept=f"{path}.bad")
        os.ftruncate(fd, 0)
        os.ftruncate(fd, SIZE)
        os.pwrite(fd, HEADER.pack(MAGIC, uid, int(datetime.now(UTC).timestamp())), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _makes_sense(content: bytes, uid: bytes) -> bool:
    if len(content) != SIZE:
        return False
    magic, whose, started = HEADER.unpack_from(content)
    words = struct.unpack_from(f"<{(SIZE - HEADER.size) // 8}Q", content, HEADER.size)
    plausible = words[Count.ACCEPTED] >= words[Count.ANSWERED] + words[Count.LOST] and max(words) < PLAUSIBLE
    return bool(magic == MAGIC and whose == uid and started < 1 << 33 and plausible)


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
