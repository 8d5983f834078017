"""Journal of the frames that a worker held when it crashed: one of them may crash any worker.

A frame that is kept until it is answered is redelivered to the next worker when its worker dies. Without this journal,
a frame that ends processes would end all of them repeatedly. So the journal records which redelivered frames are in
progress. Frames in progress when a worker died are suspects, and are later processed one at a time; a frame of which a
worker dies again is guilty, and is refused.
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

FILE = "suspects.json"
#: deaths after which a frame is guilty, and most frames that are remembered
DEATHS, MOST = 2, 256


class _Journal(msgspec.Struct):
    """``trial``: frames in progress; ``deaths``: possible deaths of workers by frame, the latest last."""

    trial: list[str] = []
    deaths: dict[str, int] = {}


class PoisonJournal:
    """Records redelivered frames and their outcome. Without a folder the record ends with the process."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None
        self._journal = _Journal()
        #: copies in progress of each frame, and the suspect in progress
        self._trial: Counter[str] = Counter()
        self._suspect = ""
        self._alone = asyncio.Lock()

    def open(self) -> None:
        """Read the record of the previous process: a frame that was in progress counts one more crash."""
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
        while len(journal.deaths) > MOST:
            del journal.deaths[next(iter(journal.deaths))]
        journal.trial = []
        self._journal = journal
        self._write()

    def guilty(self, payload: bytes) -> bool:
        """Whether a frame has crashed workers before."""
        return self._journal.deaths.get(_name(payload), 0) >= DEATHS

    async def begin(self, payload: bytes) -> None:
        """Start work on a redelivered frame; a suspect waits until no other suspect is in progress.

        Raises DecodeError for a guilty frame: it is refused like an unreadable one.
        """
        name = _name(payload)
        if self.guilty(payload):
            raise DecodeError(f"{DEATHS} workers have crashed on this frame: it is not processed again")
        if self._journal.deaths.get(name) and name not in self._trial:
            await self._alone.acquire()
            if self._journal.deaths.get(name):
                self._suspect = name
            else:  # a copy was processed meanwhile, and no worker died
                self._alone.release()
        self._trial[name] += 1
        self._write()

    def end(self, payload: bytes) -> None:
        """End work on a frame: the worker survived it."""
        name = _name(payload)
        self._trial[name] -= 1
        if self._trial[name] > 0:
            return
        begun = self._trial.pop(name) == 0
        if begun:
            self._journal.deaths.pop(name, None)
            if self._suspect == name:
                self._suspect = ""
                self._alone.release()
            self._write()

    def close(self) -> None:
        """Close in order: frames in progress do not count as crashes."""
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
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
