"""Watches the Python files that services name (``CodeFiles``), so that a worker with an edited file is replaced.

A worker imports its mining rule (which chooses hard samples), or runs its script, when it starts. The digests of these
files are in its environment: a changed one means another process, which replaces the present one as after a change of
the template. The stored record of a process has them too, so that a file that is missing when the LC starts does not
count as changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from halimede.api import Resource, placements
from halimede.api.file_references import code_files
from halimede.api.placement import SERVICES
from halimede.models.cache import in_thread
from halimede.models.origin_watch import FILE_PERIOD_S, SETTLE_S, wait_for_recheck
from halimede.models.source_registry import file_validator
from halimede.names import Key
from services.lc.models.lookup import ParsedResource
from services.lc.store import ProcessRecord

log = structlog.get_logger()
#: most bytes of a file: a larger one is no script, and not watched
MAX_BYTES = 16_000_000
#: characters of a digest in the environment of a worker
SHORT = 16


class CodeFiles:
    """The Python files of this node's services, by path: ``set_required`` reads them, ``run`` watches them.

    Attributes:
        digests: the digest of each file's content; of a missing file the last one.
        missing: files that are missing now and were there before.

    """

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.missing: set[str] = set()
        #: size, modification time and inode of each required file, as text; empty: it cannot be read
        self._fingerprints: dict[str, str] = {}
        self._recheck = asyncio.Event()

    def recheck(self) -> None:
        """Have all files checked now."""
        self._recheck.set()

    def adopt(self, record: ProcessRecord) -> None:
        """Take over the digests with which a running worker was started, for files that are missing now."""
        self.digests.update(record.code)

    async def set_required(self, items: Mapping[Key, ParsedResource]) -> None:
        """Watch the files that the services among ``items`` name from now on; read those that are new."""
        resources = (item.resource for item in items.values() if item.resource and item.stored.key.plural in SERVICES)
        files = set(_files(resources))
        for file in self._fingerprints.keys() - files:
            del self._fingerprints[file]
            self.digests.pop(file, None)
            self.missing.discard(file)
        for file in sorted(files - self._fingerprints.keys()):
            self._set(file, *await in_thread(_read, file))

    async def run(self, changed: Callable[[], None]) -> None:
        """Check the files periodically, until cancelled; call ``changed`` after each change."""
        while True:
            await wait_for_recheck(FILE_PERIOD_S, self._recheck)
            for file in list(self._fingerprints):
                if await self._is_changed(file):
                    changed()

    async def _is_changed(self, file: str) -> bool:
        """Read a file again if it has changed, unless it is being written.

        Return whether its digest is another one, it is missing now, or it is back.
        """
        fingerprint = await in_thread(_fingerprint, file)
        if fingerprint == self._fingerprints.get(file, ""):
            return False
        await asyncio.sleep(SETTLE_S)  # an editor may remove a file before it writes it again
        read, digest = await in_thread(_read, file)
        old, was_missing = self.digests.get(file, ""), file in self.missing
        if read != fingerprint or file not in self._fingerprints:
            self.recheck()  # it is being written, or no service needs it any more
            return False
        self._set(file, fingerprint, digest)
        if digest in {"", old}:
            return was_missing != (file in self.missing)
        log.info("code of a service has changed", file=file, old=old, new=digest)
        return True

    def _set(self, file: str, fingerprint: str, digest: str) -> None:
        """Record a file as it was read."""
        if not fingerprint and file in self.digests:
            self.missing.add(file)
            log.warning("code of a service is missing: its workers keep the code that they have", file=file)
        else:
            self.missing.discard(file)
        self._fingerprints[file] = fingerprint
        if digest:  # otherwise it is missing at this moment: workers keep the code that they have
            self.digests[file] = digest


def _files(resources: Iterable[Resource[Any]]) -> Iterator[str]:
    """Yield the paths of the Python files that services name."""
    for resource in resources:
        for placement in placements(resource.spec):
            yield from code_files(resource.spec, placement)


def _read(file: str) -> tuple[str, str]:
    """Return the fingerprint and the digest of a file; both are empty if it cannot be read, or is no script. Blocks.

    A user names it: a pipe must not stop this process, and a device must not fill its memory.
    """
    try:
        with open(file, "rb", opener=open_without_waiting) as opened:
            facts = os.fstat(opened.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_BYTES:
                return "", ""
            return file_validator(facts), hashlib.sha256(opened.read(MAX_BYTES)).hexdigest()[:SHORT]
    except OSError:
        return "", ""


def open_without_waiting(file: str, flags: int) -> int:
    """Open a file that may be a pipe without waiting for its writer; return the descriptor: an opener for ``open``."""
    return os.open(file, flags | os.O_NONBLOCK)


def _fingerprint(file: str) -> str:
    """Return size, modification time and inode of a file as text; empty: it cannot be read, or is no script. Blocks."""
    try:
        facts = Path(file).stat()
    except OSError:
        return ""
    return file_validator(facts) if stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_BYTES else ""
