"""Unpacks archives of models (tar, tar.gz, zip, one file as gz) into folders of the cache, completely or not at all.

The main thing is ``unpack``. Archives are untrusted. Only regular files and folders are unpacked, below one folder,
with fixed modes. Each member (a file or folder in an archive) is checked before its content is written. Sizes are
counted while reading, because headers may lie, and every limit is checked before memory is allocated. A tar is read
strictly forwards and in small pieces: a header that asks for much at once, or for an earlier position, could make
Python's reader fill the memory or loop forever.
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
LOCK_TIMEOUT_S = 600.0
#: bytes that are read or written in one step, and bytes of one header of a tar
BLOCK, TAR_HEADER_BYTES = 64 * 1024, 512
#: most bytes of a zip's directory, which is read at once
MAX_DIRECTORY_BYTES = 4 * 1024**2
#: a number that Python's reader would parse for hours, and that no valid name has
ENDLESS_NUMBER = re.compile(rb"[0-9]{300}")
#: most compressed bytes in a row without any output, as of an endless name or of empty members
MAX_EMPTY_BYTES = 128 * 1024
#: bytes to which any archive may be unpacked, whatever its compression ratio
MIN_OUTPUT_LIMIT = 16 * 1024**2
#: first bytes of a file by which its kind is recognised; they have the beginning of a gzip's content
GZIP_HEAD_BYTES = 4096
GZIP_WINDOW = 31  # zlib's number for the format of gzip
#: the name of a single compressed model in its unpacked folder
SINGLE_NAME = "model"
#: modes of unpacked files and folders: only the owner may use them, like the archive
FILE_MODE = 0o400
FOLDER_MODE = 0o700
#: the kinds of archives that are unpacked, by their first bytes; tar.gz may also be a single file
KINDS = {b"\x1f\x8b": "tar.gz", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip"}
#: the kinds of archives that are refused, by their first bytes
UNSUPPORTED_KINDS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}


class FolderRecord(Struct):
    """The content of an unpacked folder; a folder without a record is incomplete.

    Attributes:
        files: size in bytes and modification time (ns since 1970) of each file, by its path in the folder.

    """

    files: dict[str, tuple[int, int]]


async def unpack(cache: Cache, fetched: Fetched, *, limits: ArchiveLimits | None = None) -> Path:
    """Return the folder with the content of a cached archive; for any other file, the file. Raises FetchError.

    The folder is ``<cache>/unpacked/<digest>``. Nobody may write to it; if a file in it was changed, the archive is
    unpacked again. For a single compressed file, as ``gzip`` makes it, the result is the decompressed file in that
    folder. The kind of the archive is recognised by its content, not by its name. ``limits``: None: the defaults.
    """
    stop = threading.Event()
    try:
        with cache.pin(fetched.digest):
            if not await in_thread(kind_of, fetched.path):
                return fetched.path
            async with cache.lock(f"unpack-{fetched.digest}", LOCK_TIMEOUT_S):
                return await in_thread(_unpack, cache, fetched, limits or ArchiveLimits(), stop, stop=stop)
    except OSError as error:
        raise disk_error(f"the model cache {cache.root}", error) from error


def is_intact(cache: Cache, path: Path) -> bool:
    """Whether a path of the cache still has the content that was cached, by sizes and times: no content is read.

    For a path outside of the cache: whether it exists. Blocks, longer for many unpacked files.
    """
    digest = cache.digest(path)
    try:
        if not digest:
            return path.exists()
        return cache.is_unchanged(digest) if path == cache.path(digest) else _is_unpacked(cache, digest)
    except OSError:  # it is being removed, or its disk fails
        return False


def model_file(path: Path, form: ModelFormat = ONNX) -> Path:
    """Return the model of a format in an unpacked folder; a ``path`` that is a file is returned as it is.

    The model is the uppermost file with the format's preferred name (``model.onnx``), else the only file of the format.
    For a SavedModel it is the folder of that file. Hidden files, and macOS's resource files, are ignored. Raises
    FetchError if there is no model, or if several may be meant.
    """
    if not path.is_dir():
        return path
    models = sorted(file for file in path.rglob(form.file) if file.is_file())
    visible = [file for file in models if not any(map(is_hidden, file.relative_to(path).parts))]
    preferred = [file for file in visible if file.name == form.preferred]
    depth = min((len(file.parts) for file in preferred), default=0)
    candidates = [file for file in preferred if len(file.parts) == depth] or visible
    if len(candidates) == 1:
        return candidates[0].parent if form.folder else candidates[0]
    if not candidates:
        files = ", ".join(sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file())[:5])
        what = form.file.removeprefix("*")
        problem = f"there is no {what} file, only {files}" if files else f"there is no {what} file, and no other one"
        text = f"{problem}: add {form.preferred}, or correct the format {form.name}"
        raise FetchError(FetchReason.NO_MODEL_FILE, text)
    names = ", ".join(str(file.relative_to(path)) for file in candidates[:5])
    advice = "keep one of them" if form.folder else f"name one of them {form.preferred}"
    raise FetchError(FetchReason.NO_MODEL_FILE, f"there are several models ({names}): {advice}")


def format_at(path: Path) -> ModelFormat:
    """Return the format of a file by its name, of a folder by the names in it; ONNX if nothing shows another one."""
    if path.is_dir():
        return next((form for form in FORMATS.values() if any(path.rglob(form.file))), ONNX)
    return TFLITE if Path(path.name.removesuffix(".gz")).suffix == Path(TFLITE.preferred).suffix else ONNX


def _unpack(cache: Cache, fetched: Fetched, limits: ArchiveLimits, stop: threading.Event) -> Path:
    """Unpack an archive unless that is done already; return its folder, or the one decompressed file. Blocks."""
    target, record = cache.unpacked_folder(fetched.digest), cache.unpacked_record(fetched.digest)
    kind = kind_of(fetched.path)
    content = target / SINGLE_NAME if kind == "gz" else target
    if _is_unpacked(cache, fetched.digest):
        return content
    shutil.rmtree(target, ignore_errors=True)
    new = target.with_name(f".{fetched.digest}.new")
    shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed
    try:
        new.mkdir(parents=True, mode=0o700)
        UNPACKERS[kind](fetched.path, Unpacking(new, limits, fetched.size, stop))
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
    """Whether the folder of a digest has the files that were unpacked, unchanged."""
    folder = cache.unpacked_folder(digest)
    return folder.is_dir() and _read_record(cache.unpacked_record(digest)) == _files(folder)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and modification time (ns) of each file below a folder, by its path in it. Links count as files."""
    files, folders = {}, [(str(folder), "")]
    while folders:
        path, prefix = folders.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    stats = entry.stat(follow_symlinks=False)
                    files[prefix + entry.name] = (stats.st_size, stats.st_mtime_ns)
    return files


def _read_record(record: Path) -> dict[str, tuple[int, int]] | None:
    """Return the files in the record of an unpacked folder; None if there is no readable record."""
    try:
        return msgspec.json.decode(record.read_bytes(), type=FolderRecord).files
    except (OSError, msgspec.DecodeError):
        return None


class ArchiveRefusedError(FetchError):
    """An archive is damaged, exceeds a limit, or has refused content. ``message``, ``reason``: which of these."""

    def __init__(self, message: str, reason: FetchReason = FetchReason.BAD_ARCHIVE) -> None:
        super().__init__(reason, f"the archive cannot be unpacked: {message}")


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of one archive.

    Attributes:
        members: files and folders.
        max_bytes: of all files together.
        ratio: output bytes for each byte of the archive; MIN_OUTPUT_LIMIT bytes are always allowed.
        depth: steps of a member's path: the folders above it, and its own name.
        seconds: by the clock.

    """

    members: int = 10_000
    max_bytes: int = 16 * 1024**3
    ratio: int = 100
    depth: int = 16
    seconds: float = 3600.0


class Unpacking:
    """An archive that is being unpacked: counts and checks what the unpackers read, and writes the files.

    ``folder``: new and private. ``limits``: of the archive. ``size``: bytes of the archive. ``stop``: when it is set,
    the next count raises.
    """

    def __init__(self, folder: Path, limits: ArchiveLimits, size: int, stop: threading.Event) -> None:
        self.folder = folder
        self.limits = limits
        self._max_output = min(limits.max_bytes, max(MIN_OUTPUT_LIMIT, size * limits.ratio))
        self._stop = stop
        self._deadline = time.monotonic() + limits.seconds
        self._bytes_read = self._bytes_written = self._members = self._empty_bytes = 0
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def count(self, *, read: int = 0, written: int = 0) -> None:
        """Count bytes ``read`` from the decompressed archive, headers included, and bytes ``written`` to files.

        Raises ArchiveRefusedError at a limit of bytes or of time, and after ``stop``.
        """
        if self._stop.is_set():
            raise ArchiveRefusedError("it was not unpacked completely", FetchReason.INTERRUPTED)
        if time.monotonic() > self._deadline:
            raise ArchiveRefusedError(f"it takes more than {self.limits.seconds:g} s", FetchReason.TIMEOUT)
        if read or written:
            self._empty_bytes = 0
        self._bytes_read += read
        self._bytes_written += written
        if max(self._bytes_read, self._bytes_written) > self._max_output:
            limit = f"{self.limits.max_bytes} bytes, and {self.limits.ratio} times its compressed size"
            raise ArchiveRefusedError(f"its content exceeds the limits ({limit})", FetchReason.TOO_LARGE)

    def count_compressed(self, size: int) -> None:
        """Count compressed bytes that were read. Raises ArchiveRefusedError if too many have led to no output."""
        self.count()
        self._empty_bytes += size
        if self._empty_bytes > MAX_EMPTY_BYTES:
            raise ArchiveRefusedError(f"it is damaged: {MAX_EMPTY_BYTES} bytes in a row are empty")

    def check_name(self, name: str) -> str:
        """Count a member, and return its path below the folder; empty for the folder itself.

        Raises ArchiveRefusedError for an unsafe name, and for too many members.
        """
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
        for is_unsafe, why in unsafe:
            if is_unsafe:
                raise member_refusal(name, why)
        return "/".join(parts)

    def check_members(self, count: int) -> None:
        """Raise ArchiveRefusedError if ``count`` members are too many."""
        if count > self.limits.members:
            raise ArchiveRefusedError(f"it has more than {self.limits.members} members", FetchReason.TOO_LARGE)

    def make_folder(self, path: str) -> None:
        """Make the folder at a path that ``check_name`` returned, and its parents, unless they exist.

        Raises ArchiveRefusedError if a file has the name of one of them.
        """
        for length in [i for i, c in enumerate(path) if c == "/"] + [len(path)]:
            parent = path[:length]
            if parent in self._files:
                raise member_refusal(path, "a folder and a file of the same name")
            if parent and parent not in self._folders:
                self._folders.add(parent)
                (self.folder / parent).mkdir(mode=FOLDER_MODE)

    def write(self, path: str, body: IO[bytes] | gzip.GzipFile, size: int | None) -> None:
        """Write the bytes of ``body`` to a new file at a path that ``check_name`` returned, and its folders.

        ``size``: the bytes that the header states; None: any. Raises ArchiveRefusedError for another size, a name that
        exists, and at a limit.
        """
        if not path or path in self._files or path in self._folders:
            raise member_refusal(path, "the same name twice")
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
                raise ArchiveRefusedError(f"{path!r} has another length than its header states")
            os.fchmod(file.fileno(), FILE_MODE)
            os.fsync(file.fileno())


def member_refusal(name: str, why: str) -> ArchiveRefusedError:
    """Return the error that refuses an archive for one member. ``why``: what the member is."""
    shown = name if len(name) <= 80 else f"{name[:77]}..."
    text = f"{shown!r} is refused: {why}. Only regular files and folders below one folder are unpacked"
    return ArchiveRefusedError(text, FetchReason.UNSAFE_ARCHIVE)


def kind_of(path: Path) -> str:
    """Return the kind of an archive: ``zip``, ``tar``, ``tar.gz`` or ``gz``; empty for a file that is no archive.

    Raises ArchiveRefusedError for archives of other kinds.
    """
    with path.open("rb") as file:
        head = file.read(GZIP_HEAD_BYTES)
    for magic, kind in KINDS.items():
        if head.startswith(magic):
            return "gz" if kind == "tar.gz" and _is_single(head) else kind
    for magic, kind in UNSUPPORTED_KINDS.items():
        if head.startswith(magic):
            raise ArchiveRefusedError(f"it is {kind}: use tar, tar.gz or zip")
    return "tar" if _is_tar(head) else ""


def _is_tar(head: bytes) -> bool:
    """Whether first bytes are the header of a tar."""
    try:
        # checks the checksum: old tars have no magic number
        tarfile.TarInfo.frombuf(head[:TAR_HEADER_BYTES], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _is_single(head: bytes) -> bool:
    """Whether a gzip file with these first bytes has one file in it, and not a tar."""
    try:
        content = zlib.decompressobj(GZIP_WINDOW).decompress(head, TAR_HEADER_BYTES)
    except zlib.error:
        return False
    return bool(content) and not _is_tar(content)


def unpack_gzip(path: Path, unpacking: Unpacking) -> None:
    """Unpack a single file that ``gzip`` compressed, as SINGLE_NAME. Raises ArchiveRefusedError."""
    with (
        _archive_errors(),
        path.open("rb") as opened,
        gzip.GzipFile(fileobj=_CompressedReader(opened, unpacking)) as body,
    ):
        unpacking.write(SINGLE_NAME, body, None)


def unpack_tar(path: Path, unpacking: Unpacking) -> None:
    """Unpack a tar, compressed by gzip or not. Raises ArchiveRefusedError."""
    with _archive_errors(), path.open("rb") as opened:
        body: IO[bytes] = opened
        if kind_of(path) == "tar.gz":
            body = gzip.GzipFile(fileobj=_CompressedReader(opened, unpacking))  # type: ignore[assignment]
        source = _TarReader(body, unpacking)
        with tarfile.open(fileobj=source, mode="r:") as tar:  # type: ignore[call-overload]
            while member := tar.next():
                path_below = unpacking.check_name(member.name)
                if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE} or member.issparse():
                    raise member_refusal(member.name, "a link, a device, a pipe or a sparse file")
                tarfile.data_filter(member, str(unpacking.folder))
                if member.isdir():
                    unpacking.make_folder(path_below)
                elif file := tar.extractfile(member):
                    with source.content():
                        unpacking.write(path_below, file, member.size)
                tar.members.clear()  # otherwise the reader keeps all members in memory
        if source.last != bytes(TAR_HEADER_BYTES):  # the reader mistakes a broken header for the end
            raise ArchiveRefusedError("it is damaged: it has no end")
        while source.read(BLOCK):  # read to the checksum at the end
            pass


def unpack_zip(path: Path, unpacking: Unpacking) -> None:
    """Unpack a zip whose members are stored or deflated, without encryption. Raises ArchiveRefusedError."""
    with _archive_errors(), path.open("rb") as opened, zipfile.ZipFile(_CompressedReader(opened, unpacking)) as archive:
        unpacking.check_members(len(archive.infolist()))
        for member in archive.infolist():
            path_below = unpacking.check_name(member.orig_filename)
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise member_refusal(member.orig_filename, "a link, a device or a pipe")
            if member.flag_bits & 1:
                raise ArchiveRefusedError("it is encrypted: create it without a password")
            if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise ArchiveRefusedError("its compression is not supported: use deflate")
            if member.is_dir():
                unpacking.make_folder(path_below)
                continue
            with archive.open(member) as file:
                unpacking.write(path_below, file, member.file_size)


#: the function for each kind that ``kind_of`` returns
UNPACKERS = {"zip": unpack_zip, "tar": unpack_tar, "tar.gz": unpack_tar, "gz": unpack_gzip}


@contextmanager
def _archive_errors() -> Iterator[None]:
    """Turn any error in the block that a reader raises for hostile or broken bytes into an ArchiveRefusedError."""
    try:
        yield
    except tarfile.FilterError as error:
        raise member_refusal(error.tarinfo.name, "it leaves its folder") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, struct.error) as error:
        raise ArchiveRefusedError(f"it is damaged: {error}") from None
    except (EOFError, ValueError, IndexError, KeyError, NotImplementedError, RecursionError, OverflowError) as error:
        text = f"it is damaged: {cause_of(error)}" if isinstance(error, EOFError) else "it is damaged"
        raise ArchiveRefusedError(text) from None


class _TarReader:
    """The file object for Python's tar reader: it reads small pieces, only forwards, and counts the bytes.

    ``archive``: the tar, decompressed. All methods raise ArchiveRefusedError for what a valid tar does not need.
    """

    def __init__(self, archive: IO[bytes], unpacking: Unpacking) -> None:
        #: the bytes that were read last
        self.last = b""
        self._archive = archive
        self._unpacking = unpacking
        self._position = 0
        self._is_header = True

    @contextmanager
    def content(self) -> Iterator[None]:
        """Mark the bytes that are read inside the block as content, not as headers."""
        self._is_header = False
        yield
        self._is_header = True

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end; at most BLOCK."""
        if not 0 <= size <= BLOCK:
            raise ArchiveRefusedError(f"a header needs {size} bytes of memory")
        self.last = self._archive.read(size)
        self._position += len(self.last)
        self._unpacking.count(read=len(self.last))
        if self._is_header and ENDLESS_NUMBER.search(self.last):
            raise ArchiveRefusedError("a header has an endless number")
        return self.last

    def tell(self) -> int:
        """Return the position in the decompressed tar."""
        return self._position

    def seek(self, offset: int, _whence: int = 0) -> int:
        """Skip forward to ``offset`` from the beginning, at most to the end; return the position."""
        if offset < self._position:
            raise ArchiveRefusedError("a header has a negative length")
        while self._position < offset and self.read(min(BLOCK, offset - self._position)):
            pass
        return self._position


class _CompressedReader:
    """The file object for Python's zip and gzip readers: it reads pieces of limited size, and counts the bytes.

    The methods raise ArchiveRefusedError for what a valid archive does not need.
    """

    def __init__(self, opened: BinaryIO, unpacking: Unpacking) -> None:
        self._opened = opened
        self._unpacking = unpacking

    def tell(self) -> int:
        """Return the position in the file."""
        return self._opened.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position as ``io.IOBase.seek`` does, and return it."""
        try:
            return self._opened.seek(offset, whence)
        except OSError:
            raise ArchiveRefusedError("it is damaged: its directory is not valid") from None

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes; without a size the rest, at most MAX_DIRECTORY_BYTES."""
        if size > MAX_DIRECTORY_BYTES:
            raise ArchiveRefusedError(
                f"it has too many members: their directory has {size} bytes", FetchReason.TOO_LARGE
            )
        data = self._opened.read(min(size, MAX_DIRECTORY_BYTES) if size >= 0 else MAX_DIRECTORY_BYTES)
        # a larger read is that of a zip's directory, which has its own limit
        self._unpacking.count_compressed(len(data) if 0 <= size <= BLOCK else 0)
        return data

    @staticmethod
    def seekable() -> bool:
        """Return True: the archive may be read at any position."""
        return True
