"""Watches whether the content of a URL has changed since it was cached: ``watch_origin``.

A file of the node, and the data files of an ONNX model, are watched by size, modification time and inode, which cost
one system call. These make a text, the validator of the file. A server is asked by the next download, with the ETag or
the date that it sent; the watch says when. If it sent neither, only a whole download would show a change, and it is
not watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from halimede.models.cache import Cache, in_thread
from halimede.models.external_data import data_files, data_locations, sibling_url
from halimede.models.source_registry import file_validator, local_path, requester_of

#: seconds between two checks of a file, and between two requests to a server
FILE_PERIOD_S, SERVER_PERIOD_S = 30.0, 300.0
#: seconds without a further change after which a changed file counts as completely written
SETTLE_S = 1.0
#: most bytes of a model file that is read into memory to find its data files: with its weights elsewhere, it is small
MAX_MODEL_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class OriginWatch:
    """Compares the cached content of a URL with its origin.

    Attributes:
        files: for a URL of the node, the validators of its files when they were cached; empty for a server.
        ask_at: the time of the event loop, in seconds, at which a server should be asked again; infinite: never.

    """

    files: Mapping[Path, str] = field(default_factory=dict)
    ask_at: float = math.inf

    async def has_changed(self, *, at_once: bool) -> bool:
        """Whether a file of the URL differs from its cached content, or its server should be asked now.

        ``at_once``: ask a server even before ``ask_at``. While a file is being written, this waits, without a deadline.
        """
        if self.ask_at < math.inf:
            return at_once or asyncio.get_running_loop().time() >= self.ask_at
        validators = await in_thread(_validators, self.files)
        while any(validator not in {"", self.files[file]} for file, validator in validators.items()):
            before = validators
            await asyncio.sleep(SETTLE_S)
            validators = await in_thread(_validators, self.files)
            if validators == before:
                return True
        return False


async def watch_origin(url: str, cache: Cache) -> OriginWatch:
    """Return the watch of a URL whose content is cached now. Raises FetchError for a URL that is not valid."""
    path = local_path(url)
    if path is not None:
        return OriginWatch(await in_thread(_file_validators, url, path, cache))
    record = cache.recall(requester_of(url).key)
    has_validator = record is not None and record.validator
    return OriginWatch(ask_at=asyncio.get_running_loop().time() + SERVER_PERIOD_S if has_validator else math.inf)


async def wait_for_recheck(seconds: float, recheck: asyncio.Event) -> bool:
    """Wait until ``recheck`` is set, at most for some seconds; clear it, and return whether it was set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await recheck.wait()
    is_set = recheck.is_set()
    recheck.clear()
    return is_set


def _file_validators(url: str, path: Path, cache: Cache) -> dict[Path, str]:
    """Return the validator of the cached content of the model file and of each data file, if it is cached."""
    urls = {path: url}
    with contextlib.suppress(OSError):  # if it is gone since, its cached content stays in use
        urls |= {path.parent / name: sibling_url(url, name) for name in _data_files(url, path, cache)}
    records = {file: cache.recall(requester_of(origin).key) for file, origin in urls.items()}
    return {file: record.validator for file, record in records.items() if record}


def _data_files(url: str, path: Path, cache: Cache) -> list[str]:
    """Return the locations of a model's data files, from its cached content, else from the user's file.

    Raises OSError. The user's file is not mapped into memory, because this process would end if it became shorter.
    """
    record = cache.recall(requester_of(url).key)
    with contextlib.suppress(OSError):  # removed for space
        if record:
            return data_files(cache.path(record.digest))
    return data_locations(path.read_bytes()) if path.stat().st_size <= MAX_MODEL_BYTES else []


def _validators(files: Mapping[Path, str]) -> dict[Path, str]:
    """Return the present validator of each file; empty for a missing file, whose cached content stays in use."""
    return {file: _validator(file) for file in files}


def _validator(file: Path) -> str:
    """Return the present validator of a file; empty if it is missing."""
    try:
        return file_validator(file.stat())
    except OSError:
        return ""
