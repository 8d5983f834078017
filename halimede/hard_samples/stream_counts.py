"""Two files in the folder of stored samples that a training needs: counts of the stream, and how it is mined.

The stream is all samples that the worker answered; from its counts a training knows for how many samples of the stream
a stored sample stands. The file of counts has one line of JSON for each interval, version of the small model, and share
of audits. Over its bound, the older half is removed. A reader skips incomplete lines.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from halimede.system.files import write_atomic

#: the names of both files
STREAM, MINING = "stream.jsonl", "mining.settings"
#: most bytes of the counts: nine days of intervals of 10 s with samples
MAX_BYTES = 8 * 1024 * 1024

#: a count
Number = Annotated[int, Meta(ge=0)]


class StreamInterval(Struct, rename="camel", kw_only=True):
    """The number of samples that a version of the small model answered in an interval.

    Attributes:
        began_s, until_s: times of the first and the last sample, in seconds since 1970 by the node's clock. In lines of
            earlier releases ``began_s`` is None.
        version: the version of the small model.
        audit_share: the share of easy samples that was audited, 0 to 1.
        hard, easy: number of hard and of easy samples.

    """

    began_s: float | None = None
    until_s: float
    version: str = ""
    audit_share: float = 0.0
    hard: Number = 0
    easy: Number = 0

    def share_since(self, since_s: float) -> float:
        """Return the share of the samples after a time (seconds since 1970), 0 to 1, as if they came evenly.

        It is 1 without ``began_s``: all samples may have come after that time.
        """
        if self.until_s < since_s:
            return 0.0
        if self.began_s is None or self.began_s >= since_s:
            return 1.0
        return (self.until_s - since_s) / (self.until_s - self.began_s)


class MiningSettings(Struct, rename="camel", kw_only=True, frozen=True):
    """How the worker mines.

    Attributes:
        rule, parameters, mode: the hard example mining, as in the service's spec.
        target_upload_ratio: the upload budget, 0 to 1; without a budget, the share of uploads that the service's
            calibration measured. None: neither is known.
        temperature: of the next tier's model: its probabilities are calibrated by it.

    """

    rule: str
    parameters: dict[str, str] = {}
    mode: str = "inference-then-mining"
    target_upload_ratio: float | None = None
    temperature: Annotated[float, Meta(gt=0)] = 1.0


class StreamCounts:
    """Counts the samples of the stream, and appends the counts to the file in ``folder`` at each ``save``.

    ``observe`` may be called in another thread than ``save``.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STREAM
        #: counts since the last ``save``, by version and share of audits
        self._intervals: dict[tuple[str, float], StreamInterval] = {}
        self._lock = threading.Lock()

    def observe(self, version: str, audit_share: float, at_s: float, *, hard: bool) -> None:
        """Count a sample that ``version`` of the small model answered at ``at_s``, in seconds since 1970.

        ``audit_share``: the share of easy samples that is audited, 0 to 1. ``hard``: whether mining found it hard.
        """
        with self._lock:
            interval = self._intervals.get((version, audit_share))
            if interval is None:
                interval = StreamInterval(began_s=at_s, until_s=at_s, version=version, audit_share=audit_share)
                self._intervals[version, audit_share] = interval
            interval.until_s = at_s
            if hard:
                interval.hard += 1
            else:
                interval.easy += 1

    def save(self) -> None:
        """Append the counts since the last call to the file, and halve a file that is too large.

        Raises OSError; the next call then saves the counts that are not in the file.
        """
        with self._lock:
            intervals, self._intervals = self._intervals, {}
        if not intervals:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.open("ab") as file:
                file.write(b"".join(msgspec.json.encode(interval) + b"\n" for interval in intervals.values()))
                size = file.tell()
        except OSError:
            with self._lock:
                for key, interval in intervals.items():
                    if since := self._intervals.get(key):
                        interval.until_s = since.until_s
                        interval.hard += since.hard
                        interval.easy += since.easy
                    self._intervals[key] = interval
            raise
        if size > MAX_BYTES:
            content = self._path.read_bytes()
            write_atomic(self._path, content[content.find(b"\n", len(content) // 2) + 1 :])


def read_stream(folder: Path) -> Iterator[StreamInterval]:
    """Yield the counts in a folder of stored samples, the oldest first; none without the file. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / STREAM).read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                yield msgspec.json.decode(line, type=StreamInterval)


def write_mining(folder: Path, settings: MiningSettings) -> None:
    """Write how the worker mines into a folder, which is made if it is missing. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(folder / MINING, msgspec.json.encode(settings))


def read_mining(folder: Path) -> MiningSettings | None:
    """Return how the worker of a folder mines; None if that is unknown. Raises OSError."""
    try:
        return msgspec.json.decode((folder / MINING).read_bytes(), type=MiningSettings)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
