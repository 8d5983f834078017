"""Models that come as an archive (tar, tar.gz, zip) become a folder of the cache: whole at once, or not there.

What is inside was written by strangers. Only regular files and folders come out, below one folder, with no mode of
theirs, each member judged before a byte of it is written, and sizes counted as they come: headers are not believed.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

from halimede.models.archive_extract import ArchiveLimits, Unpacking, kind_of, unpack_tar, unpack_zip
from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error
from halimede.system.files import sync_folder, write_atomic

#: seconds to wait for another process that unpacks the same
PATIENCE_S = 600.0
NAME = "model.onnx"


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
