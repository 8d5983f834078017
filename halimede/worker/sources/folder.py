"""Pictures of a folder, by name, as frames of one camera; includes pictures that appear later.

Files can wait, so a picture is read only when there is capacity for it. The ids of submitted pictures are stored next
to the ledger: a restarted worker continues after its predecessor. If the context is ``durable``, an id is stored after
the answer, so that a killed worker's successor answers the frames in progress.
"""

from __future__ import annotations

import asyncio
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

SUFFIXES = {".jpg", ".jpeg", ".png"}
#: seconds between two scans; a file counts as complete when two scans find it unchanged
LOOK_S = 0.25
DONE_FILE = "folder.done"
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True, order=True)
class FolderPicture:
    """A file as of the last scan."""

    name: str
    size: int
    modified_ns: int


def scan(folder: Path) -> list[FolderPicture]:
    """Return the pictures in a folder, by name, without hidden ones. Raises OSError."""
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


def id_of(life: str, picture: FolderPicture, turn: int) -> bytes:
    """Return the id of a picture in the life of a service on a node; each turn of a loop gives a new one."""
    what = f"{life}/{picture.name}/{picture.size}/{picture.modified_ns}/{turn}"
    return hashlib.blake2b(what.encode(errors="surrogateescape"), digest_size=ID_BYTES).digest()


def camera_of(folder: Path) -> str:
    """Return the folder's name in the form of a camera name."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower())[:MAX_LABEL].strip("-") or "folder"


@register("path")
class FolderSource(FrameSource):
    """One folder of the node. It follows symbolic links to files: a dataset often is a folder of links."""

    def __init__(self, context: SourceContext) -> None:
        self._folder = Path(context.data_prefix + context.spec.path)
        self._life = f"{context.service}/{context.life}"
        self._memory = Done(context.state / DONE_FILE if context.state and not context.loop else None)
        self._camera = context.camera or camera_of(self._folder)
        self._loop = context.loop
        self._durable = context.durable
        self._dead_letter = context.dead_letter
        self._done: set[FolderPicture] = set()
        self._known: set[bytes] = set()
        self._turn = 0

    @property
    def unrecorded(self) -> str:  # type: ignore[override]  # of the record on disk
        """Why answered pictures would be answered again after a restart, empty if they would not."""
        return self._memory.trouble

    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit pictures until ``stop``. Raises InvalidFieldError if there is no such folder at the start."""
        before = await self._scan(strict=True)
        self._known = await asyncio.to_thread(self._memory.read)
        while not await _stopped(stop, LOOK_S):
            now = await self._scan()
            steady = sorted(set(now) & set(before))
            self._done &= set(now)
            for picture in steady:
                if stop.is_set():
                    return
                if picture not in self._done:
                    await self._hand_over(picture, intake)
                    self._done.add(picture)
            if self._loop and steady and self._done >= set(now):
                self._done.clear()
                self._turn += 1
            before = now

    async def _scan(self, *, strict: bool = False) -> list[FolderPicture]:
        try:
            return await asyncio.to_thread(scan, self._folder)
        except OSError as error:
            if strict:
                raise InvalidFieldError(
                    "spec.edgeWorker.source.path", str(self._folder), str(error.strerror)
                ) from error
            log.warning("folder unreadable", folder=str(self._folder), error=str(error))
            return []

    async def _hand_over(self, picture: FolderPicture, intake: FrameSink) -> None:
        id_ = id_of(self._life, picture, self._turn)
        if id_ in self._known:
            return
        name = file_name(picture.name)
        try:
            payload = await asyncio.to_thread(_read, self._folder / picture.name)
        except OSError as error:
            log.warning("picture unreadable", name=name, error=str(error))
            return
        answered = partial(self._memory.add, id_) if self._durable else None
        try:
            await intake.offer(payload, self._camera, id_=id_, patient=True, answered=answered, file=name)
        except DecodeError as error:
            await self._dead_letter(Packet(topic=f"file:{name}", payload=payload), str(error))
            answered = None
        if answered is None:
            self._memory.add(id_)


class Done:
    """The ids of submitted pictures, in an append-only file; without a path they are not stored."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        #: ids that were not written because the disk was full: written with the next id
        self._unwritten = b""
        #: why they are not written yet
        self.trouble = ""

    def read(self) -> set[bytes]:
        """Return the ids in the file, without a last one that a crash truncated."""
        content = self._path.read_bytes() if self._path and self._path.exists() else b""
        whole = len(content) // ID_BYTES * ID_BYTES
        if self._path and whole < len(content):
            os.truncate(self._path, whole)
        return {content[i : i + ID_BYTES] for i in range(0, whole, ID_BYTES)}

    def add(self, id_: bytes) -> None:
        """Add an id. Like the ledger, it is not synced to disk. A full disk loses ids, not frames."""
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
    """Read a picture upright, up to one byte more than a frame may have: larger ones are refused without being read."""
    with path.open("rb") as file:
        return upright(file.read(MAX_BYTES + 1))


async def _stopped(stop: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True
