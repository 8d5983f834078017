"""Models that come as an archive (tar, tar.gz, zip) become a folder of the cache: whole at once, or not there.

What is inside was written by strangers. Only regular files and folders come out, below one folder, with no mode of
theirs, each member judged before a byte of it is written, and sizes counted as they come: headers are not believed.
Every bound is kept while reading, before memory is taken. A tar is read strictly forwards and in small pieces: headers
that ask for more at once, or for what lies behind, are how Python's reader is made to fill the memory or to run in
circles.
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

from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error
from halimede.system.files import sync_folder, write_atomic

#: seconds to wait for another process that unpacks the same
PATIENCE_S = 600.0
NAME = "model.onnx"
BLOCK = 64 * 1024
HEADER = 512
#: bytes that a zip's directory may have: it is read at once
MOST_DIRECTORY = 4 * 1024**2
#: what Python's reader would search for hours, and no name can have
ENDLESS_NUMBER = re.compile(rb"[0-9]{300}")
#: compressed bytes in a row of which nothing comes out: an endless name, empty members
MOST_EMPTY = 256 * 1024
#: bytes that any archive may become, however well it was compressed
FREE = 16 * 1024**2
FILE_MODE = 0o400  # what only its owner could read stays that way
FOLDER_MODE = 0o700
#: how files begin that are archives, and others that can only be meant as one
MAGIC = {b"\x1f\x8b": "tar.gz", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip"}
FOREIGN = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}


class FolderRecord(Struct):
    """Size and modification time of each file of an unpacked folder. One without a record is not whole."""

    files: dict[str, tuple[int, int]]


async def unpack(cache: Cache, fetched: Fetched, *, limits: ArchiveLimits | None = None) -> Path:
    """Return the folder with what is in an archive, or the file itself if it is none. Raises FetchError.

    The folder is ``<cache>/unpacked/<digest>``; its content decides what an archive is, not its name. It must not be
    written to. One whose files are not as they were left is made again.
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


def model_file(path: Path) -> Path:
    """Return the model in an unpacked folder: ``model.onnx``, else the one ONNX file. A file is returned as it is.

    Raises FetchError. Hidden files are none, nor what macOS puts beside each file.
    """
    if not path.is_dir():
        return path
    found = sorted(each for each in path.rglob("*.onnx") if each.is_file() and _shown(each.relative_to(path)))
    named = [each for each in found if each.name == NAME]
    first = min((len(each.parts) for each in named), default=0)
    candidates = [each for each in named if len(each.parts) == first] or found
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        files = ", ".join(sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file())[:5]) or "nothing"
        raise FetchError(FetchReason.NO_MODEL_FILE, f"no .onnx file is in the archive, but {files}: put {NAME} into it")
    names = ", ".join(str(each.relative_to(path)) for each in candidates[:5])
    raise FetchError(FetchReason.NO_MODEL_FILE, f"which model is it? The archive has {names}: call one of them {NAME}")


def _shown(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def _unpacked(cache: Cache, fetched: Fetched, limits: ArchiveLimits, stop: threading.Event) -> Path:
    target = cache.root / "unpacked" / fetched.digest
    record = cache.root / "index" / f"unpacked-{fetched.digest}.json"
    if target.is_dir() and _recorded(record) == _files(target):
        return target
    shutil.rmtree(target, ignore_errors=True)
    new = target.with_name(f".{fetched.digest}.new")
    shutil.rmtree(new, ignore_errors=True)  # what one that was killed has left
    try:
        new.mkdir(parents=True, mode=0o700)
        unpacking = Unpacking(new, limits, fetched.size, stop)
        {"zip": unpack_zip, "tar": unpack_tar, "tar.gz": unpack_tar}[kind_of(fetched.path)](fetched.path, unpacking)
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
    return target


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            facts = path.lstat()
            found[str(path.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns)
    return found


def _recorded(record: Path) -> dict[str, tuple[int, int]] | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=FolderRecord).files
    except (OSError, msgspec.DecodeError):
        return None


class ArchiveRefusedError(FetchError):
    """An archive is not unpacked."""

    def __init__(self, reason: FetchReason, message: str) -> None:
        super().__init__(reason, f"the archive is not unpacked: {message}")


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Bounds of one archive: members, bytes of all files, bytes out for each byte in, folders in one another, time."""

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
        """Note bytes that came out of the archive, headers too, and bytes of files. Raises RefusedError."""
        if self._stop.is_set():
            raise ArchiveRefusedError(FetchReason.INTERRUPTED, "it was not unpacked to the end")
        if time.monotonic() > self._until:
            raise ArchiveRefusedError(FetchReason.TIMEOUT, f"it takes more than {self.limits.seconds:g} s")
        if read or written:
            self._empty = 0
        self._read += read
        self._written += written
        if max(self._read, self._written) > self._most:
            limit = f"{self.limits.max_bytes} bytes, and {self.limits.ratio} bytes for each that was compressed"
            raise ArchiveRefusedError(FetchReason.TOO_LARGE, f"more comes out of it than the limits allow ({limit})")

    def compressed(self, size: int) -> None:
        """Note bytes that were read of the archive itself: something has to come out of them. Raises RefusedError."""
        self.count()
        self._empty += size
        if self._empty > MOST_EMPTY:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is damaged: {MOST_EMPTY} bytes of it hold nothing")

    def member(self, name: str) -> str:
        """Judge the name of a member; return its path below the folder, empty for the folder itself."""
        self._members += 1
        if self._members > self.limits.members:
            raise ArchiveRefusedError(FetchReason.TOO_LARGE, f"it has more than {self.limits.members} members")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        unsafe = (
            (name.startswith("/"), "an absolute path"),
            (".." in parts, "a path with .."),
            ("\\" in name or not name.isprintable(), "a backslash or a character that cannot be shown in its name"),
            (len(parts) > self.limits.depth, f"more than {self.limits.depth} folders in one another"),
            (any(len(os.fsencode(part)) > 255 for part in parts), "a name of more than 255 bytes"),
        )
        for is_so, why in unsafe:
            if is_so:
                raise refused(name, why)
        return "/".join(parts)

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it."""
        for end in [i for i, c in enumerate(path) if c == "/"] + [len(path)]:
            above = path[:end]
            if above in self._files:
                raise refused(path, "a folder where a file is")
            if above and above not in self._folders:
                self._folders.add(above)
                (self.folder / above).mkdir(mode=FOLDER_MODE)

    def write(self, path: str, body: IO[bytes], size: int) -> None:
        """Write a file of exactly ``size`` bytes."""
        if not path or path in self._files or path in self._folders:
            raise refused(path, "the same name twice")
        self.make_folder(path.rpartition("/")[0])
        self._files.add(path)
        written = 0
        with (self.folder / path).open("xb", buffering=0) as file:
            while block := body.read(BLOCK):
                written += len(block)
                self.count(written=len(block))
                if written > size:
                    break
                file.write(block)
            if written != size:
                raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"{path!r} is not as long as its header says")
            os.fchmod(file.fileno(), FILE_MODE)
            os.fsync(file.fileno())


def refused(name: str, why: str) -> ArchiveRefusedError:
    """Return the refusal of a member."""
    shown = name if len(name) <= 80 else f"{name[:77]}..."
    text = f"{shown!r} is refused: {why}. Only regular files and folders below one folder are unpacked"
    return ArchiveRefusedError(FetchReason.UNSAFE_ARCHIVE, text)


def kind_of(path: Path) -> str:
    """Return ``zip``, ``tar``, ``tar.gz``, or empty for what is no archive. Raises RefusedError for other archives."""
    with path.open("rb") as file:
        head = file.read(HEADER)
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return kind
    for magic, kind in FOREIGN.items():
        if head.startswith(magic):
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is {kind}: use tar, tar.gz or zip")
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")  # by its checksum: old ones have no magic
    except tarfile.HeaderError:
        return ""
    return "tar"


def unpack_tar(path: Path, unpacking: Unpacking) -> None:
    """Unpack a tar, compressed or not. Raises RefusedError."""
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
                tar.members.clear()  # else it keeps them all
        if source.last != bytes(HEADER):  # the reader takes a broken header for the end
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is damaged: it has no end")
        while source.read(BLOCK):  # to the checksum behind it
            pass


def unpack_zip(path: Path, unpacking: Unpacking) -> None:
    """Unpack a zip. Raises RefusedError."""
    with _damage(), path.open("rb") as raw, zipfile.ZipFile(_Pieces(raw, unpacking)) as archive:
        for member in archive.infolist():
            below = unpacking.member(member.orig_filename)
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise refused(member.orig_filename, "a link, a device or a pipe")
            if member.flag_bits & 1:
                raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is encrypted: leave out the password")
            if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is compressed in an unusual way: use deflate")
            if member.is_dir():
                unpacking.make_folder(below)
                continue
            with archive.open(member) as file:
                unpacking.write(below, file, member.file_size)


@contextmanager
def _damage() -> Iterator[None]:
    """Say of every error that hostile or broken bytes can raise in a reader that the archive is bad."""
    try:
        yield
    except tarfile.FilterError as error:
        raise refused(error.tarinfo.name, "it does not stay in its folder") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, struct.error) as error:
        raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is damaged: {error}") from None
    except (EOFError, ValueError, IndexError, KeyError, NotImplementedError, RecursionError, OverflowError) as error:
        raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"it is damaged ({type(error).__name__})") from None


class _Forwards:
    """The bytes of a tar, counted, in small pieces, and never backwards."""

    def __init__(self, body: IO[bytes], unpacking: Unpacking) -> None:
        #: what was read at last
        self.last = b""
        self._body = body
        self._unpacking = unpacking
        self._at = 0
        self._header = True

    @contextmanager
    def in_a_body(self) -> Iterator[None]:
        """Within the block what is read is no header."""
        self._header = False
        yield
        self._header = True

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes."""
        if not 0 <= size <= BLOCK:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, f"a header wants {size} bytes at once")
        self.last = self._body.read(size)
        self._at += len(self.last)
        self._unpacking.count(read=len(self.last))
        if self._header and ENDLESS_NUMBER.search(self.last):
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "a header has an endless number")
        return self.last

    def tell(self) -> int:
        """Say how far it has been read."""
        return self._at

    def seek(self, offset: int, _whence: int = 0) -> int:
        """Skip what lies before ``offset``."""
        if offset < self._at:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "a header has a negative length")
        while self._at < offset and self.read(min(BLOCK, offset - self._at)):
            pass
        return self._at


class _Pieces:
    """The bytes of a compressed archive, of which nothing asks for many at once."""

    def __init__(self, raw: BinaryIO, unpacking: Unpacking) -> None:
        self._raw = raw
        self._unpacking = unpacking
        self.tell = raw.tell

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go somewhere else."""
        try:
            return self._raw.seek(offset, whence)
        except OSError:
            raise ArchiveRefusedError(FetchReason.BAD_ARCHIVE, "it is damaged: its directory leads nowhere") from None

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes, or what is left of a small file."""
        if size > MOST_DIRECTORY:
            raise ArchiveRefusedError(FetchReason.TOO_LARGE, f"its directory has {size} bytes")
        found = self._raw.read(min(size, MOST_DIRECTORY) if size >= 0 else MOST_DIRECTORY)
        # a zip's directory is bounded already
        self._unpacking.compressed(len(found) if 0 <= size <= BLOCK else 0)
        return found

    @staticmethod
    def seekable() -> bool:
        """Say that one may go back and forth."""
        return True
