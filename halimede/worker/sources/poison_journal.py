"""A journal of the frames that a worker had in progress when it crashed: one of them may crash any worker.

A frame that the broker keeps until it is answered is redelivered to another worker when its worker dies. A frame that
crashes workers (poison) would so crash all of them, again and again. Hence the journal records which redelivered frames
are in progress. Frames in progress at a crash are suspects, and are later processed one at a time. A suspect on which a
worker crashes again is guilty, and is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from pathlib import Path

import msgspec
import structlog

from halimede.errors import DecodeError

log = structlog.get_logger()

#: the file, in the worker's folder
FILE = "suspects.json"
#: crashes after which a frame is guilty
GUILTY_DEATHS = 2
#: frames that are remembered
MAX_FRAMES = 256


class _Journal(msgspec.Struct):
    """The file's content, by names of frames. ``trial``: in progress; ``deaths``: crashes with each, latest last."""

    trial: list[str] = []
    deaths: dict[str, int] = {}


class PoisonJournal:
    """Records redelivered frames and their outcome, in a file in ``folder``; None: only in memory.

    Call ``open`` first, ``begin`` and ``end`` for each redelivered frame, and ``close`` at an orderly end.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None
        self._journal = _Journal()
        #: copies in progress of each frame, and the suspect in progress
        self._trial: Counter[str] = Counter()
        self._suspect = ""
        self._alone = asyncio.Lock()

    def open(self) -> None:
        """Read the record of the previous process: each frame in progress has one more crash. Raises nothing."""
        try:
            content = self._path.read_bytes() if self._path else b"{}"
            journal = msgspec.json.decode(content, type=_Journal)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("state of an earlier process not readable", file=str(self._path), error=str(error))
            return
        for name in dict.fromkeys(journal.trial):
            journal.deaths[name] = journal.deaths.pop(name, 0) + 1
        while len(journal.deaths) > MAX_FRAMES:
            del journal.deaths[next(iter(journal.deaths))]
        journal.trial = []
        self._journal = journal
        self._write()

    def is_guilty(self, payload: bytes) -> bool:
        """Whether a frame was in progress at so many crashes that it is refused."""
        return self._journal.deaths.get(_name(payload), 0) >= GUILTY_DEATHS

    async def begin(self, payload: bytes) -> None:
        """Begin work on a redelivered frame; a suspect waits, without a deadline, until work on another has ended.

        ``payload``: of its message. Raises DecodeError for a guilty frame.
        """
        name = _name(payload)
        if self.is_guilty(payload):
            raise DecodeError(f"{GUILTY_DEATHS} workers have crashed on this frame: it is not processed again")
        if self._journal.deaths.get(name) and name not in self._trial:
            await self._alone.acquire()
            if self._journal.deaths.get(name):
                self._suspect = name
            else:  # a copy was processed meanwhile, and no worker died
                self._alone.release()
        self._trial[name] += 1
        self._write()

    def end(self, payload: bytes) -> None:
        """End work on a frame, which the worker has survived. If no copy of it is in progress, it is no suspect."""
        name = _name(payload)
        self._trial[name] -= 1
        if self._trial[name] > 0:
            return
        has_begun = self._trial.pop(name) == 0  # below 0: ``begin`` has refused the frame, or was cancelled
        if has_begun:
            self._journal.deaths.pop(name, None)
            if self._suspect == name:
                self._suspect = ""
                self._alone.release()
            self._write()

    def close(self) -> None:
        """Record an orderly end: frames in progress do not become suspects."""
        self._trial.clear()
        self._write()

    def _write(self) -> None:
        """Write the record, not synced to disk: it protects against crashes, not against power cuts."""
        self._journal.trial = list(self._trial)
        if self._path:
            try:
                self._path.write_bytes(msgspec.json.encode(self._journal))
            except OSError as error:
                log.warning("poison journal not written", error=str(error))


def _name(payload: bytes) -> str:
    """Return the name of a frame in the journal: a digest of its payload."""
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
