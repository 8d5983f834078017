"""Watches whether the content of a URL has changed since it was cached.

A file of the node is watched by its size, modification time and inode, which cost one system call; so are the external
data of an ONNX file. A server is asked, more rarely, by the next download: with the ETag or the date that it sent. If
it sent none, nothing is known without a whole download, and it is not watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from halimede.models.cache import Cache, in_thread
from halimede.models.external_data import data_files, locations, sibling_url
from halimede.models.source_registry import asker, file_validator, local_path

#: seconds between two checks of a file, and between two requests to a server
FILE_PERIOD_S, SERVER_PERIOD_S = 30.0, 300.0
#: seconds in which a changed file must not change again: who writes it may need longer
QUIET_S = 1.0
#: the largest model file that is read into memory to find its data; one with its weights elsewhere is small
MOST_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class OriginWatch:
    """The cached content of a URL and its origin. ``files``: the validators of the node's files when it was cached.

    ``ask_at``: the loop time at which a server should be asked again.
    """

    files: Mapping[Path, str] = field(default_factory=dict)
    ask_at: float = math.inf

    async def has_changed(self, *, at_once: bool) -> bool:
        """Whether the content of the URL differs from its cached content, or its server should be asked again.

        ``at_once``: a server is asked before its time. A file that is being written is awaited.
        """
        if self.ask_at < math.inf:
            return at_once or asyncio.get_running_loop().time() >= self.ask_at
        validators = await in_thread(_validators, self.files)
        while any(validator not in {"", self.files[file]} for file, validator in validators.items()):
            before = validators
            await asyncio.sleep(QUIET_S)
            validators = await in_thread(_validators, self.files)
            if validators == before:
                return True
        return False


async def watch_origin(url: str, cache: Cache) -> OriginWatch:
    """Return the watch for the content of a URL that is cached now."""
    path = local_path(url)
    if path is not None:
        return OriginWatch(await in_thread(_files, url, path, cache))
    record = cache.recall(asker(url).key)
    is_marked = record is not None and record.validator
    return OriginWatch(ask_at=asyncio.get_running_loop().time() + SERVER_PERIOD_S if is_marked else math.inf)


async def paused(seconds: float, recheck: asyncio.Event) -> bool:
    """Sleep until the time has passed, or ``recheck`` is set, which is cleared; return whether it was set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await recheck.wait()
    is_set = recheck.is_set()
    recheck.clear()
    return is_set


def _files(url: str, path: Path, cache: Cache) -> dict[Path, str]:
    """Return the model file and its data files, each with the validator of its cached content (empty: none)."""
    urls = {path: url}
    with contextlib.suppress(OSError):  # if it is gone since, its cached content stays in use
        urls |= {path.parent / name: sibling_url(url, name) for name in _data_files(url, path, cache)}
    records = {file: cache.recall(asker(origin).key) for file, origin in urls.items()}
    return {file: record.validator for file, record in records.items() if record}


def _data_files(url: str, path: Path, cache: Cache) -> list[str]:
    """Return the locations of a model's data, from its cached content.

    The file of a user is not mapped: its user may shorten it at any time, which would end this process.
    """
    record = cache.recall(asker(url).key)
    with contextlib.suppress(OSError):  # removed for space
        if record:
            return data_files(cache.path(record.digest))
    return locations(path.read_bytes()) if path.stat().st_size <= MOST_BYTES else []


def _validators(files: Mapping[Path, str]) -> dict[Path, str]:
    """Return the present validators; empty for a file that is missing: its cached content stays in use."""
    return {file: _validator(file) for file in files}


def _validator(file: Path) -> str:
    try:
        return file_validator(file.stat())
    except OSError:
        return ""
