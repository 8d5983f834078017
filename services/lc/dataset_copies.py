"""Copies the files of Datasets of other nodes (``DatasetCopies``): only changed files travel over the bus.

The list of a Dataset's files has the name, size and digest of each file; its own digest identifies the Dataset's
content. ``<root>/<namespace>/<name>/data`` is a link to the folder of the present copy. The next copy is built next to
it: files that are here already become hard links, the others are fetched by their digests. Then the link is replaced.
What is built stays when the process ends, and the next process continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec
import structlog

from halimede.datasets.counting import FileState, state_of
from halimede.datasets.listing import FileIndex, ListedFile, Listing, index_of, read_index, read_listing
from halimede.errors import first_error
from halimede.models import Cache, Fetched
from halimede.models.cache import in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error
from halimede.names import Key
from halimede.system.files import write_atomic
from services.lc.planning.resource_state import RequiredFile

log = structlog.get_logger()
#: most files that are fetched at a time; mostly they wait for other nodes
PARALLEL_FETCHES = 16
#: seconds until a file is requested again that another node does not have yet
RETRY_S = 0.5
#: bytes of a disk that a copy leaves free
SPARE_BYTES = 256 * 1024 * 1024
#: names: of the link to the present copy, of the folder of incoming files, and of the list of the present copy's files
DATA, INCOMING = "data", ".incoming"
LISTING = "files.listing"
#: fetches a file of a Dataset into a cache, by its digest; raises FetchError
FetchCopy = Callable[[RequiredFile, str, Cache], Awaitable[Fetched]]
#: returns the number of nodes through which a file, by its digest, comes
Depth = Callable[[RequiredFile, str], int]
#: is called with the number of files that are here, their bytes, and the list of all files
Progress = Callable[[int, int, Listing], None]


class SharedFiles:
    """The files of this node's Datasets that other nodes may copy, found by digest."""

    def __init__(self) -> None:
        #: by Dataset and digest: the path, and the state in which the file has the digest
        self._files: dict[Key, dict[str, tuple[Path, FileState]]] = {}

    def set(self, key: Key, listing: Path, index: FileIndex) -> None:
        """Share exactly the files of a Dataset in ``index``, and their list, which is the file ``listing``. Blocks."""
        folder = Path(index.folder)
        files = {digest: (folder / name, at) for name, (at, digest) in index.files.items()}
        if index.listing and (now := state_of(listing)):
            files[index.listing] = (listing, now)
        self._files[key] = files

    def add(self, key: Key, digest: str, path: Path) -> None:
        """Share one more file of a Dataset, which has just been received. Blocks."""
        if now := state_of(path):
            self._files.setdefault(key, {})[digest] = (path, now)

    def drop(self, key: Key) -> None:
        """Share the files of a Dataset no longer."""
        self._files.pop(key, None)

    async def find(self, digest: str) -> Path | None:
        """Return the path of a shared file; None: there is none with this digest, or it has changed since."""
        for files in self._files.values():
            if entry := files.get(digest):
                path, at = entry
                if await in_thread(state_of, path) == at:
                    return path
        return None


class DatasetCopies:
    """The copies of a node below the folder ``root``. Received files are shared with further nodes at once.

    ``depth``: the files that come through few nodes are fetched first, because further nodes wait for them.
    """

    def __init__(self, root: Path, fetch: FetchCopy, depth: Depth, shared: SharedFiles) -> None:
        self.shared = shared
        self.fetch = fetch
        self.depth = depth
        self._root = root

    async def update(self, required: RequiredFile, report: Progress) -> Path:
        """Make the copy of a Dataset that has the content ``required.sha256``; return the path of the copied data.

        ``report`` is called with the progress. Raises FetchError if a file cannot be fetched or stored, DatasetError
        for a list of files that must not be used.
        """
        folder = self._root / required.key.namespace / required.key.name
        try:
            return await _Copy(self, folder, required, report).update()
        except OSError as error:
            raise disk_error(f"the folder of copies {self._root}", error) from error

    def tidy(self, keys: Collection[Key]) -> None:
        """Remove the copies of all Datasets but ``keys``. Blocks: call it in a thread."""
        for namespace in self._root.iterdir() if self._root.is_dir() else ():
            for folder in namespace.iterdir():
                if not any((key.namespace, key.name) == (namespace.name, folder.name) for key in keys):
                    shutil.rmtree(folder, ignore_errors=True)


class _Copy:
    """The making of one copy in a folder."""

    def __init__(self, copies: DatasetCopies, folder: Path, required: RequiredFile, report: Progress) -> None:
        self._copies = copies
        self._shared = copies.shared
        self._folder = folder
        self._required = required
        self._report = report
        self._cache = Cache(folder / INCOMING)
        self._listing_file = folder / LISTING
        #: the folder of the new copy
        self._new = folder / f".{required.sha256[:16]}"
        #: the list of files as it travels
        self._raw = b""
        #: number and bytes of files that are here
        self._files = self._bytes = 0

    async def update(self) -> Path:
        """Make the copy; return the path of the data in it: a folder, or the only file."""
        old_index = await in_thread(read_index, index_of(self._listing_file))
        self._shared.set(self._required.key, self._listing_file, old_index)
        listing = await self._fetch_listing()
        missing = await in_thread(self._build, listing, old_index)
        if missing:
            self._count(listing, missing)
            await self._fetch_all(listing, missing)
        if missing or old_index.listing != self._required.sha256:
            self._shared.set(self._required.key, self._listing_file, await in_thread(self._finish, listing))
            log.info("dataset copied", key=str(self._required.key), files=len(listing.files), received=len(missing))
        data = self._folder / DATA
        return data / listing.files[0].name if listing.single else data

    async def _fetch_listing(self) -> Listing:
        """Return the list of files with the required digest: one that is here already, else one from another node.

        A list from an attempt that was interrupted counts as well. Raises FetchError, DatasetError.
        """
        incoming = self._folder / f".{self._required.sha256[:16]}.listing"
        for path in (self._listing_file, incoming):
            self._raw = await in_thread(_content, path)
            if hashlib.sha256(self._raw).hexdigest() == self._required.sha256:
                return read_listing(self._raw)
        fetched = await self._copies.fetch(self._required, self._required.sha256, self._cache)
        self._raw = await in_thread(_content, fetched.path)
        listing = read_listing(self._raw)
        await in_thread(self._move, fetched.path, incoming)
        self._shared.add(self._required.key, self._required.sha256, incoming)
        return listing

    def _build(self, listing: Listing, old_index: FileIndex) -> dict[str, list[ListedFile]]:
        """Put the files that are here into the new folder; return the missing ones by digest. Blocks."""
        old = Path(old_index.folder)
        unchanged = {name for name, (at, _) in old_index.files.items() if state_of(old / name) == at}
        present_files = {old_index.files[name][1]: old / name for name in unchanged}
        is_current = old_index.listing == self._required.sha256
        missing: dict[str, list[ListedFile]] = {}
        for file in listing.files:
            path = self._new / file.name
            # a complete copy has the states of its files in its index; in an incomplete one a file counts by its size
            if file.name in unchanged if is_current else _has(path, file.size):
                self._shared.add(self._required.key, file.digest, path)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if not file.size:
                path.touch(0o444)
            elif file.digest in present_files:
                os.link(present_files[file.digest], path)
            else:
                missing.setdefault(file.digest, []).append(file)
        return missing

    def _count(self, listing: Listing, missing: dict[str, list[ListedFile]]) -> None:
        """Count what is here, and report that; raise FetchError instead if the disk has no space for missing files."""
        missing_files = [file for files in missing.values() for file in files]
        self._files = len(listing.files) - len(missing_files)
        self._bytes = listing.size - sum(file.size for file in missing_files)
        needed = sum(files[0].size for files in missing.values())
        free = shutil.disk_usage(self._folder).free - SPARE_BYTES
        if needed > free:
            text = f"{needed / 1e6:,.0f} MB of files do not fit into {max(0, free) / 1e6:,.0f} MB below {self._folder}"
            raise FetchError(FetchReason.DISK_FULL, f"{text}: free space there", temporary=True)
        self._report(self._files, self._bytes, listing)

    async def _fetch_all(self, listing: Listing, missing: dict[str, list[ListedFile]]) -> None:
        """Fetch all missing files. A file that no node has yet is requested again after the others, without end."""
        waiting = deque(sorted(missing, key=lambda digest: (self._copies.depth(self._required, digest), digest)))
        due: dict[str, float] = {}
        now = asyncio.get_running_loop().time

        async def work() -> None:
            while waiting:
                digest = waiting.popleft()
                await asyncio.sleep(max(0.0, due.get(digest, 0.0) - now()))
                try:
                    fetched = await self._copies.fetch(self._required, digest, self._cache)
                except FetchError as error:
                    if not (error.temporary and error.reason is FetchReason.NOT_FOUND):
                        raise
                    due[digest] = now() + RETRY_S
                    waiting.append(digest)
                    continue
                await in_thread(self._receive, fetched.path, missing[digest])
                self._files += len(missing[digest])
                self._bytes += sum(file.size for file in missing[digest])
                self._report(self._files, self._bytes, listing)

        with first_error():
            async with asyncio.TaskGroup() as group:
                for number in range(min(PARALLEL_FETCHES, len(waiting))):
                    group.create_task(work(), name=f"copy {self._required.key}: {number}")

    def _receive(self, received: Path, files: list[ListedFile]) -> None:
        """Move a received file to the first of its names, and link the others to it. Blocks."""
        first, *copies = (self._new / file.name for file in files)
        self._move(received, first)
        for path in copies:
            path.unlink(missing_ok=True)
            os.link(first, path)
        self._shared.add(self._required.key, files[0].digest, first)

    def _move(self, received: Path, path: Path) -> None:
        """Move a received file, made read-only, to a path. Blocks."""
        path.parent.mkdir(parents=True, exist_ok=True)
        received.chmod(0o444)
        received.replace(path)

    def _finish(self, listing: Listing) -> FileIndex:
        """Replace the present copy by the new one, and remove what is no longer needed; return its index. Blocks."""
        link = self._folder / ".data"
        link.unlink(missing_ok=True)
        link.symlink_to(self._new.name)
        link.replace(self._folder / DATA)
        # the list and the index last of all: without these two files, the next process does this again
        files = {file.name: (at, file.digest) for file in listing.files if (at := state_of(self._new / file.name))}
        index = FileIndex(listing=self._required.sha256, folder=str(self._new), files=files)
        write_atomic(self._listing_file, self._raw)
        write_atomic(index_of(self._listing_file), msgspec.msgpack.encode(index))
        names = {self._new.name, DATA, LISTING, index_of(self._listing_file).name}
        for entry in list(self._folder.iterdir()):
            if entry.name not in names:
                _remove(entry)
        return index


def _content(path: Path) -> bytes:
    """Return the bytes of a file; none: it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _has(path: Path, size: int) -> bool:
    """Whether a file of this size is at a path: a received file gets its name only when it is complete and verified."""
    try:
        return path.lstat().st_size == size
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder; an error is ignored."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
