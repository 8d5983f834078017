"""Watches the Python files of users' mining rules, so that a worker with an edited rule is replaced.

A worker imports its rule when it starts. The digest of the file is part of its process, as its environment is: a change
makes another process, which takes over as after a change of its template.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from halimede.api import Resource, placements
from halimede.api.placement import SERVICES
from halimede.models.cache import in_thread
from halimede.models.source_registry import file_mark
from halimede.names import Key
from services.lc.models.lookup import ParsedResource

log = structlog.get_logger()
#: seconds between two checks of all files
PERIOD_S = 30.0
#: characters of a digest in the environment of a worker
SHORT = 16


class RuleFiles:
    """The digests of the rule files of this node's services, by path; a missing file has none."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self._marks: dict[str, str] = {}

    async def set_required(self, items: Mapping[Key, ParsedResource]) -> None:
        """Watch the files of these services from now on; read those that are new."""
        resources = (item.resource for item in items.values() if item.resource and item.held.key.plural in SERVICES)
        files = set(_rule_files(resources))
        for file in self._marks.keys() - files:
            del self._marks[file]
            self.digests.pop(file, None)
        for file in sorted(files - self._marks.keys()):
            self._set(file, *await in_thread(_read, file))

    async def run(self, changed: Callable[[], None]) -> None:
        """Check the files periodically, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            for file, mark in list(self._marks.items()):
                if await in_thread(_mark, file) in {"", mark}:
                    continue
                old = self.digests.get(file, "")
                self._set(file, *await in_thread(_read, file))
                if self.digests.get(file) not in {None, old}:
                    log.info("file of a mining rule has changed", file=file, old=old, new=self.digests[file])
                    changed()

    def _set(self, file: str, mark: str, digest: str) -> None:
        self._marks[file] = mark
        if digest:  # otherwise it is missing at this moment: workers keep the rule that they have
            self.digests[file] = digest


def _rule_files(resources: Iterable[Resource[Any]]) -> Iterator[str]:
    return (place.rule_file for resource in resources for place in placements(resource.spec) if place.rule_file)


def _read(file: str) -> tuple[str, str]:
    """Return the mark and the digest of a file; empty if it cannot be read."""
    mark = _mark(file)
    try:
        return mark, hashlib.sha256(Path(file).read_bytes()).hexdigest()[:SHORT]
    except OSError:
        return mark, ""


def _mark(file: str) -> str:
    try:
        return file_mark(Path(file).stat())
    except OSError:
        return ""
