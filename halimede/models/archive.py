"""Unpacks archives of models (tar, tar.gz, zip, one file as gz) into folders of the cache, completely or not at all.

Archives are untrusted. Only regular files and folders are unpacked, below one folder, with fixed modes. Each member is
checked before its content is written, and sizes are counted while reading: headers are not trusted. Every limit is
checked before memory is allocated. A tar is read strictly forwards and in small pieces, because a header that requests
much at once, or a position behind, can make Python's reader fill the memory or loop forever.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import stat
import struct
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
from msgspec import Struct

from halimede.api.model_formats import FORMATS, ONNX, TFLITE, ModelFormat
from halimede.errors import cause_of
from halimede.hidden_names import is_hidden
from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error
from halimede.system.files import sync_folder, write_atomic

#: seconds to wait for another process that unpacks the same archive
PATIENCE_S = 600.0
BLOCK = 64 * 1024
HEADER = 512
#: the most bytes of a zip's directory, which is read at once
MOST_DIRECTORY = 4 * 1024**2
#: a number that Python's reader would parse for hours, and that no valid name has
ENDLESS_NUMBER = re.compile(rb"[0-9]{300}")
#: the most compressed bytes in a row without any output: an endless name, or empty members
MOST_EMPTY = 128 * 1024
#: bytes that any archive may unpack to, whatever its compression ratio
FREE = 16 * 1024**2
#: compressed bytes in which the begin of a gzip's content is expected
GZIP_HEAD = 4096
GZIP = 31  # zlib's number for the format of gzip
#: the name of a compressed model in its folder
SINGLE = "model"
FILE_MODE = 0o400  # only the owner may read, as with the archive
FOLDER_MODE = 0o700
#: first bytes of supported archives, and of others that must be refused
MAGIC = {b"\x1f\x8b": "tar.gz", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip"}
FOREIGN = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}


class FolderRecord(Struct):
    """Size and modification time of each file of an unpacked folder. A folder without a record is incomplete."""

    files: dict[str, tuple[int, int]]


async def unpack(cache: Cache, fetched: Fetched, *, limits: ArchiveLimits | None = None) -> Path:
    """Return the folder with the content of an archive, or the file itself if it is none. Raises FetchError.

    Of a single compressed file, as ``gzip`` makes it and some servers send it, the result is the file in it.
    The folder is ``<cache>/unpacked/<digest>``. The content identifies an archive, not the file's name. The folder must
    not be written to; it is unpacked again if a file in it has changed.
    """
    stop = threading.Event()
    try:
        with cache.using(fetched.digest):
            if not await in_thread(kind_of, fetched.path):
                return fetched.path
            async with cache.lock(f"unpack-{fetched.digest}", PATIENCE_S):
                return await in_thread(_unpacked, cache, fetched, limits or ArchiveLimits(), stop, stop=stop)
    except OSError as error:
        raise disk_error(f"the model cache {cache.root}", error) from error


def is_intact(cache: Cache, path: Path) -> bool:
    """Whether a path still has what was cached for it, by sizes and times: no content is read.

    A path outside of the cache must only exist. Blocks, for a time that depends on the number of unpacked files.
    """
    digest = cache.digest(path)
    try:
        if not digest:
            return path.exists()
        return cache.is_unchanged(digest) if path == cache.path(digest) else _is_unpacked(cache, digest)
    except OSError:  # it is being removed, or its disk fails
        return False


def model_file(path: Path, form: ModelFormat = ONNX) -> Path:
    """Return the model in an unpacked folder: ``model.onnx``, else the one ONNX file; likewise of other formats.

    A SavedModel is the folder of its ``saved_model.pb``. A file is returned as it is. Raises FetchError. Hidden files
    are ignored, and so are the resource files of macOS.
    """
    if not path.is_dir():
        return path
    models = sorted(file for file in path.rglob(form.file) if file.is_file())
    visible = [file for file in models if not any(map(is_hidden, file.relative_to(path).parts))]
    named = [file for file in visible if file.name == form.preferred]
    first = min((len(file.parts) for file in named), default=0)
    candidates = [file for file in named if len(file.parts) == first] or visible
    if len(candidates) == 1:
        return candidates[0].parent if form.folder else candidates[0]
    if not candidates:
        files = ", ".join(sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file())[:5])
        what = form.file.removeprefix("*")
        present = f"there is no {what} file, only {files}" if files else f"there is no {what} file, and no other one"
        text = f"{present}: add {form.preferred}, or correct the format {form.name}"
        raise FetchError(FetchReason.NO_MODEL_FILE, text)
    names = ", ".join(str(file.relative_to(path)) for file in candidates[:5])
    fix = "keep one of them" if form.folder else f"name one of them {form.preferred}"
    raise FetchError(FetchReason.NO_MODEL_FILE, f"there are several models ({names}): {fix}")


def format_at(path: Path) -> ModelFormat:
    """Return the format of a local file or folder by its name and content; ONNX unless it looks like another one."""
    if path.is_dir():
        formats = (form for form in FORMATS.values() if any(path.rglob(form.file)))
        return next(formats, ONNX)
    return TFLITE if Path(path.name.removesuffix(".gz")).suffix == Path(TFLITE.preferred).suffix else ONNX


def _unpacked(cache: Cache, fetched: Fetched, limits: ArchiveLimits, stop: threading.Event) -> Path:
    target, record = cache.unpacked(fetched.digest), cache.unpacked_record(fetched.digest)
    kind = kind_of(fetched.path)
    content = target / SINGLE if kind == "gz" else target
    if _is_unpacked(cache, fetched.digest):
        return content
    shutil.rmtree(target, ignore_errors=True)
    new = target.with_name(f".{fetched.digest}.new")
    shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed
    try:
        new.mkdir(parents=True, mode=0o700)
        unpacking = Unpacking(new, limits, fetched.size, stop)
        UNPACK[kind](fetched.path, unpacking)
        for folder, _, _ in os.walk(new):
            sync_folder(Path(folder))
        files = _files(new)
        new.replace(target)
        sync_folder(target.parent)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(record, msgspec.json.encode(FolderRecord(files)))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return content


def _is_unpacked(cache: Cache, digest: str) -> bool:
    folder = cache.unpacked(digest)
    return folder.is_dir() and _recorded(cache.unpacked_record(digest)) == _files(folder)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file below a folder. Links are files here. Some archives have thousands of files."""
    facts, folders = {}, [(str(folder), "")]
    while folders:
        path, prefix = folders.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    stats = entry.stat(follow_symlinks=False)
                    facts[prefix + entry.name] = (stats.st_size, stats.st_mtime_ns)
    return facts


def _recorded(record: Path) -> dict[str, tuple[int, int]] | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=FolderRecord).files
    except (OSError, msgspec.DecodeError):
        return None


class ArchiveRefusedError(FetchError):
    """An archive was refused."""

    def __init__(self, reason: FetchReason, message: str) -> None:
        super().__init__(reason, f"the archive cannot be unpacked: {message}")


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of one archive: members, bytes of all files, ratio of output to input bytes, depth of folders, time."""

    members: int = 10_000
    max_bytes: int = 16 * 1024**3
    ratio: int = 100
    depth: int = 16
    seconds: float = 3600.0


class Unpacking:
    """An archive that is being unpacked into a new private folder."""

    def __init__(self, folder: Path, limits: ArchiveLimits, size: int, stop: threading.Event) -> None:
        self.folder = folder
        self.limits = limits
        self._most = min(limits.max_bytes, max(FREE, size * limits.ratio))
        self._stop = stop
        self._until = time.monotonic() + limits.seconds
        self._read = self._written = self._members = self._empty = 0
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def count(self, *, read: int = 0, written: int = 0) -> None:
        """Count bytes of the archive's content, headers included, and bytes of files. Raises ArchiveRefusedError."""
        if self._stop.is_set():
            raise ArchiveRefusedError(FetchReason.INTERRUPTED, "it was not unpacked completely")
        if time.monotonic() > self._until:
            raise ArchiveRefusedError(FetchReason.TIMEOUT, f"it takes more than {self.limits.seconds:g} s")
        if read or written:
            self._empty = 0
        self._read += read
        self._written += written
        if max(self._read, self._written) > self._most:
            limit = f"{self.limits.max_bytes} bytes, and {self.limits.ratio} times its compressed size"
            raise ArchiveRefusedError(FetchReason.TOO_LARGE, f"its content exceeds the limits ({limit})")

    def compressed(self, size: int) -> None:
        """Count compressed bytes that were read: some output must follow. Raises ArchiveRefusedError."""
        self.count()
        self._empty += size
        if self._empty > MOST_EMPTY:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is damaged: {MOST_EMPTY} bytes in a row are empty")

    def member(self, name: str) -> str:
        """Check the name of a member; return its path below the folder, empty for the folder itself."""
        self._members += 1
        self.check_members(self._members)
        parts = [part for part in name.split("/") if part not in {"", "."}]
        unsafe = (
            (name.startswith("/"), "an absolute path"),
            (".." in parts, "a path with .."),
            ("\\" in name or not name.isprintable(), "a backslash or a character that cannot be shown in its name"),
            (len(parts) > self.limits.depth, f"more than {self.limits.depth} levels of folders"),
            (any(len(os.fsencode(part)) > 255 for part in parts), "a name of more than 255 bytes"),
        )
        for is_so, why in unsafe:
            if is_so:
                raise refused(name, why)
        return "/".join(parts)

    def check_members(self, count: int) -> None:
        """Check the number of members. Raises ArchiveRefusedError."""
        if count > self.limits.members:
            raise ArchiveRefusedError(FetchReason.TOO_LARGE, f"it has more than {self.limits.members} members")

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents."""
        for end in [i for i, c in enumerate(path) if c == "/"] + [len(path)]:
            above = path[:end]
            if above in self._files:
                raise refused(path, "a folder and a file of the same name")
            if above and above not in self._folders:
                self._folders.add(above)
                (self.folder / above).mkdir(mode=FOLDER_MODE)

    def write(self, path: str, body: IO[bytes] | gzip.GzipFile, size: int | None) -> None:
        """Write a file of exactly ``size`` bytes; None: of all bytes."""
        if not path or path in self._files or path in self._folders:
            raise refused(path, "the same name twice")
        self.make_folder(path.rpartition("/")[0])
        self._files.add(path)
        written = 0
        with (self.folder / path).open("xb", buffering=0) as file:
            while block := body.read(BLOCK):
                written += len(block)
                self.count(written=len(block))
                if size is not None and written > size:
                    break
                file.write(block)
            if size is not None and written != size:
                raise ArchiveRefusedError(
                    FetchReason.BAD_ARCHIVE, f"{path!r} has another length than its header states"
                )
            os.fchmod(file.fileno(), FILE_MODE)
            os.fsync(file.fileno())


def refused(name: str, why: str) -> ArchiveRefusedError:
    """Return the refusal of a member."""
    shown = name if len(name) <= 80 else f"{name[:77]}..."
    text = f"{shown!r} is refused: {why}. Only regular files and folders below one folder are unpacked"
    return ArchiveRefusedError(FetchReason.UNSAFE_ARCHIVE, text)


def kind_of(path: Path) -> str:
    """Return ``zip``, ``tar``, ``tar.gz``, ``gz``, or empty for another file.

    Raises ArchiveRefusedError for other archives.
    """
    with path.open("rb") as file:
        head = file.read(GZIP_HEAD)
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return "gz" if kind == "tar.gz" and _is_single(head) else kind
    for magic, kind in FOREIGN.items():
        if head.startswith(magic):
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is {kind}: use tar, tar.gz or zip")
    return "tar" if _is_tar(head) else ""


def _is_tar(head: bytes) -> bool:
    try:
        # checks the checksum: old tars have no magic number
        tarfile.TarInfo.frombuf(head[:HEADER], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _is_single(head: bytes) -> bool:
    """Whether a gzip file that begins so has something else in it than a tar."""
    try:
        content = zlib.decompressobj(GZIP).decompress(head, HEADER)
    except zlib.error:
        return False
    return bool(content) and not _is_tar(content)


def unpack_gzip(path: Path, unpacking: Unpacking) -> None:
    """Unpack a single compressed file. Raises ArchiveRefusedError."""
    with _damage(), path.open("rb") as raw, gzip.GzipFile(fileobj=_Pieces(raw, unpacking)) as body:
        unpacking.write(SINGLE, body, None)


def unpack_tar(path: Path, unpacking: Unpacking) -> None:
    """Unpack a tar, compressed or not. Raises ArchiveRefusedError."""
    with _damage(), path.open("rb") as raw:
        body: IO[bytes] = raw
        if kind_of(path) == "tar.gz":
            body = gzip.GzipFile(fileobj=_Pieces(raw, unpacking))  # type: ignore[assignment]
        source = _Forwards(body, unpacking)
        with tarfile.open(fileobj=source, mode="r:") as tar:  # type: ignore[call-overload]
            while member := tar.next():
                below = unpacking.member(member.name)
                if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE} or member.issparse():
                    raise refused(member.name, "a link, a device, a pipe or a sparse file")
                tarfile.data_filter(member, str(unpacking.folder))
                if member.isdir():
                    unpacking.make_folder(below)
                elif file := tar.extractfile(member):
                    with source.in_a_body():
                        unpacking.write(below, file, member.size)
                tar.members.clear()  # otherwise the reader keeps all members in memory
        if source.last != bytes(HEADER):  # the reader mistakes a broken header for the end
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is damaged: it has no end")
        while source.read(BLOCK):  # read to the checksum at the end
            pass


def unpack_zip(path: Path, unpacking: Unpacking) -> None:
    """Unpack a zip. Raises ArchiveRefusedError."""
    with _damage(), path.open("rb") as raw, zipfile.ZipFile(_Pieces(raw, unpacking)) as archive:
        unpacking.check_members(len(archive.infolist()))
        for member in archive.infolist():
            below = unpacking.member(member.orig_filename)
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise refused(member.orig_filename, "a link, a device or a pipe")
            if member.flag_bits & 1:
                raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is encrypted: create it without a password")
            if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "its compression is not supported: use deflate")
            if member.is_dir():
                unpacking.make_folder(below)
                continue
            with archive.open(member) as file:
                unpacking.write(below, file, member.file_size)


UNPACK = {"zip": unpack_zip, "tar": unpack_tar, "tar.gz": unpack_tar, "gz": unpack_gzip}


@contextmanager
def _damage() -> Iterator[None]:
    """Turn each error that hostile or broken bytes can raise in a reader into an error about the archive."""
    try:
        yield
    except tarfile.FilterError as error:
        raise refused(error.tarinfo.name, "it leaves its folder") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, struct.error) as error:
        raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is damaged: {error}") from None
    except (EOFError, ValueError, IndexError, KeyError, NotImplementedError, RecursionError, OverflowError) as error:
        text = f"it is damaged: {cause_of(error)}" if isinstance(error, EOFError) else "it is damaged"
        raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, text) from None


class _Forwards:
    """Reads a tar in small pieces, only forwards, and counts the bytes."""

    def __init__(self, body: IO[bytes], unpacking: Unpacking) -> None:
        #: the bytes that were read last
        self.last = b""
        self._body = body
        self._unpacking = unpacking
        self._at = 0
        self._header = True

    @contextmanager
    def in_a_body(self) -> Iterator[None]:
        """Mark the bytes that are read inside the block as content, not as headers."""
        self._header = False
        yield
        self._header = True

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes."""
        if not 0 <= size <= BLOCK:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"a header needs {size} bytes of memory")
        self.last = self._body.read(size)
        self._at += len(self.last)
        self._unpacking.count(read=len(self.last))
        if self._header and ENDLESS_NUMBER.search(self.last):
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "a header has an endless number")
        return self.last

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, _whence: int = 0) -> int:
        """Skip forward to ``offset``."""
        if offset < self._at:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "a header has a negative length")
        while self._at < offset and self.read(min(BLOCK, offset - self._at)):
            pass
        return self._at


class _Pieces:
    """Reads a compressed archive in pieces of limited size."""

    def __init__(self, raw: BinaryIO, unpacking: Unpacking) -> None:
        self._raw = raw
        self._unpacking = unpacking
        self.tell = raw.tell

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        try:
            return self._raw.seek(offset, whence)
        except OSError:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is damaged: its directory is not valid") from None

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes, or the rest of a small file."""
        if size > MOST_DIRECTORY:
            raise ArchiveRefusedError(
                FetchReason.TOO_LARGE, f"it has too many members: their directory has {size} bytes"
            )
        data = self._raw.read(min(size, MOST_DIRECTORY) if size >= 0 else MOST_DIRECTORY)
        # larger reads are of a zip's directory, which has its own limit
        self._unpacking.compressed(len(data) if 0 <= size <= BLOCK else 0)
        return data

    @staticmethod
    def seekable() -> bool:
        """Return True: the archive may be read at any position."""
        return True
