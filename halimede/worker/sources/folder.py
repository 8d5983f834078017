"""Pictures of a folder (``FolderSource``), by name, as frames of one camera; pictures that appear later are included.

Files can wait: pictures are read one at a time, each after the intake has accepted the one before. The ids of submitted
pictures are stored in the worker's folder, unless the folder is repeated: a restarted worker continues after them. If
the source is durable, an id is stored after the answer, so that after a kill the next process answers the frames that
were in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from halimede.bus import Packet
from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames.orientation import upright
from halimede.frames.payloads import ID_BYTES
from halimede.hidden_names import is_hidden
from halimede.names import MAX_LABEL, file_name
from halimede.system.files import FULL
from halimede.worker.sources.base import FrameSink, FrameSource, SourceContext, register

log = structlog.get_logger()

#: endings of the names of pictures
SUFFIXES = {".jpg", ".jpeg", ".png"}
#: seconds between two scans; a file counts as complete when two scans find it unchanged
SCAN_PERIOD_S = 0.25
#: name of the file with the ids of submitted pictures
DONE_FILE = "folder.done"
#: pictures of a folder that are read; further ones are left out
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True, order=True)
class FolderPicture:
    """A picture's file in a scan: its name, its bytes, and the time of its last change in nanoseconds since 1970."""

    name: str
    size: int
    modified_ns: int


def scan(folder: Path) -> list[FolderPicture]:
    """Return the pictures in a folder, by name, without hidden ones, at most MAX_FILES. Raises OSError."""
    pictures = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if is_hidden(name) or Path(name).suffix.lower() not in SUFFIXES or not entry.is_file():
                continue
            stat = entry.stat()
            pictures.append(FolderPicture(name, stat.st_size, stat.st_mtime_ns))
            if len(pictures) >= MAX_FILES:
                break
    return sorted(pictures)


def id_of(life: str, picture: FolderPicture, repetition: int) -> bytes:
    """Return the frame id (16 bytes) of a picture in the life of a service on a node, in one repetition of a loop."""
    identity = f"{life}/{picture.name}/{picture.size}/{picture.modified_ns}/{repetition}"
    return hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=ID_BYTES).digest()


def camera_of(folder: Path) -> str:
    """Return the camera name that a folder's name gives."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower())[:MAX_LABEL].strip("-") or "folder"


@register("path")
class FolderSource(FrameSource):
    """A ``FrameSource``: one folder of the node. Links to files are followed: a data set often is a folder of links."""

    def __init__(self, context: SourceContext) -> None:
        self._folder = Path(context.data_prefix + context.spec.path)
        self._life = f"{context.group}/{context.life}"
        self._record = SubmittedIds(context.state / DONE_FILE if context.state and not context.loop else None)
        self._camera = context.camera or camera_of(self._folder)
        self._loop = context.loop
        self._durable = context.durable
        self._dead_letter = context.dead_letter
        self._submitted: set[FolderPicture] = set()
        #: pictures whose file could not be read; each is logged once
        self._unreadable: set[FolderPicture] = set()
        self._recorded_ids: set[bytes] = set()
        self._repetition = 0

    @property
    def unrecorded(self) -> str:  # type: ignore[override]  # of the record on disk
        """Why answered pictures would be answered again after a restart; empty if they would not."""
        return self._record.trouble

    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit pictures until ``stop`` is set.

        Raises InvalidFieldError if the folder cannot be read at the start, OSError if the record of ids cannot be used.
        """
        previous = await self._scan(strict=True)
        self._recorded_ids = await asyncio.to_thread(self._record.read)
        while not await _has_stopped_within(stop, SCAN_PERIOD_S):
            current = await self._scan()
            unchanged = sorted(set(current) & set(previous))
            self._submitted &= set(current)
            self._unreadable &= set(current)
            for picture in unchanged:
                if stop.is_set():
                    return
                if picture not in self._submitted:
                    await self._hand_over(picture, intake)
            if self._loop and unchanged and self._submitted | self._unreadable >= set(current):
                self._submitted.clear()
                self._repetition += 1
            previous = current

    async def _scan(self, *, strict: bool = False) -> list[FolderPicture]:
        """Return the pictures in the folder. A folder that cannot be read: raise InvalidFieldError, or return none."""
        try:
            return await asyncio.to_thread(scan, self._folder)
        except OSError as error:
            folder = str(self._folder)
            if strict:
                raise InvalidFieldError("spec.edgeWorker.source.path", folder, str(error.strerror)) from error
            log.warning("folder unreadable", folder=folder, error=str(error))
            return []

    async def _hand_over(self, picture: FolderPicture, intake: FrameSink) -> None:
        """Submit a picture, unless an earlier process has.

        The next scan tries a file again that cannot be read. One that is no valid picture is published as a dead
        letter, and recorded.
        """
        id_ = id_of(self._life, picture, self._repetition)
        if id_ in self._recorded_ids:
            self._submitted.add(picture)
            return
        name = file_name(picture.name)
        try:
            payload = await asyncio.to_thread(_read, self._folder / picture.name)
        except OSError as error:
            if picture not in self._unreadable:
                log.warning("picture unreadable", name=name, error=str(error))
            self._unreadable.add(picture)
            return
        self._unreadable.discard(picture)
        self._submitted.add(picture)
        answered = partial(self._record.add, id_) if self._durable else None
        try:
            await intake.offer(payload, self._camera, id_=id_, patient=True, answered=answered, file=name)
        except DecodeError as error:
            await self._dead_letter(Packet(topic=f"file:{name}", payload=payload), str(error))
            answered = None
        if answered is None:
            self._record.add(id_)


class SubmittedIds:
    """The ids of submitted pictures, in a file to which ids are appended. ``path``: None: they are not stored.

    Attributes:
        trouble: why ids are not written yet; empty: all are.

    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        #: ids that were not written because the disk was full: written with the next id
        self._unwritten = b""
        self.trouble = ""

    def read(self) -> set[bytes]:
        """Return the ids in the file. A last id that a crash has truncated is removed. Blocks. Raises OSError."""
        content = self._path.read_bytes() if self._path and self._path.exists() else b""
        complete = len(content) // ID_BYTES * ID_BYTES
        if self._path and complete < len(content):
            os.truncate(self._path, complete)
        return {content[i : i + ID_BYTES] for i in range(0, complete, ID_BYTES)}

    def add(self, id_: bytes) -> None:
        """Write an id, without syncing it to disk; on a full disk write it with a later one. Raises other OSErrors."""
        if not self._path:
            return
        self._unwritten += id_
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            with self._path.open("ab", buffering=0) as file:
                written = file.write(self._unwritten)
                if written < len(self._unwritten):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.trouble = f"{self._path}: answered pictures cannot be recorded: {error.strerror}: free some space"
        else:
            self._unwritten, self.trouble = b"", ""


def _read(path: Path) -> bytes:
    """Return a picture's file, turned upright, up to one byte more than a frame may have: the intake refuses that."""
    with path.open("rb") as file:
        return upright(file.read(MAX_BYTES + 1))


async def _has_stopped_within(stop: asyncio.Event, timeout_s: float) -> bool:
    """Wait for ``stop``, at most ``timeout_s`` seconds; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    return stop.is_set()
