"""Brings an ONNX model together with its external data: the files beside it that hold its weights.

PyTorch's exporter writes ``model.onnx`` and ``model.onnx.data``. The model file names its data files by locations,
paths relative to its own folder. ``fetch_model`` fetches them from the same folder of the same origin, and packs model
and data into one tar of the cache. The bytes of the tar depend only on the content of the files. So one digest covers
all of them, and an unpacked model has its data beside it, as if its user had packed them into an archive.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error, redact
from halimede.models.fetcher import Progress, fetch
from halimede.models.source_registry import local_path, requester_of
from halimede.models.source_types import SourceOpener, TransferLimits
from halimede.system.onnx_file import MalformedProtobufError, records

#: the name of the model file in the tar
MODEL_NAME = "model.onnx"
#: attempts to fetch a model and its data while its origin replaces them
MAX_ATTEMPTS = 3
#: most data files of a model, and most folders between the model's folder and a data file
MAX_FILES, MAX_DEPTH = 256, 8
#: most characters of a location: messages quote it
MAX_LOCATION = 1024
#: part of a location that ONNX Runtime interprets as an address in memory
MEMORY_ADDRESS_PREFIX = "_ORT_MEM_ADDR_"


class DataFilesError(FetchError):
    """The data files of a model could not be fetched, because of ``error``.

    ``model``: the model file, which is in the cache without them.
    """

    def __init__(self, model: Fetched, error: FetchError) -> None:
        self.model = model
        super().__init__(error.reason, str(error), temporary=error.temporary, status=error.status)


async def fetch_model(
    url: str,
    sha256: str,
    cache: Cache,
    progress: Progress | None = None,
    *,
    limits: TransferLimits | None = None,
    policy: AddressPolicy | None = None,
    openers: Mapping[str, SourceOpener] | None = None,
) -> Fetched:
    """Return the file of ``url`` in the cache; for an ONNX model with external data, a tar of model and data files.

    The parameters are those of ``fetcher.fetch``. ``sha256`` covers one file, so it must be empty for a model with data
    files. ``limits.max_bytes`` is for all files together, the other limits are for each. Raises InvalidFieldError and
    FetchError; the latter is a DataFilesError if only the model file could be fetched.
    """
    limits = limits or TransferLimits()
    common: dict[str, Any] = {"policy": policy, "openers": openers}
    for _ in range(MAX_ATTEMPTS):
        fetched = await fetch(url, sha256, cache, progress, limits=limits, **common)
        with cache.pin(fetched.digest):
            locations = await in_thread(data_files, fetched.path)
            if not locations or not all(is_inside(location) for location in locations):
                return fetched  # the trial of a model that names files outside of its folder refuses it
            files = {MODEL_NAME: fetched}
            try:
                _check_names(url, sha256, locations)
                for location in locations:
                    remaining = replace(limits, max_bytes=limits.max_bytes - sum(file.size for file in files.values()))
                    files[location] = await _fetch_data(
                        url, locations, location, cache, progress, limits=remaining, **common
                    )
                if await _is_replaced(url, files, cache, limits=limits, **common):
                    continue
            except FetchError as error:
                raise DataFilesError(fetched, error) from error
            try:
                packed = await in_thread(
                    _pack_into_cache, cache, {location: file.path for location, file in files.items()}
                )
            except OSError as error:
                raise disk_error(f"the model cache {cache.root}", error) from error
        return replace(packed, fresh=all(file.fresh for file in files.values()))
    text = f"{redact(url)} or its data files were replaced {MAX_ATTEMPTS} times while they were fetched"
    raise FetchError(FetchReason.INTERRUPTED, text, temporary=True)


async def _is_replaced(url: str, files: Mapping[str, Fetched], cache: Cache, **options: Any) -> bool:
    """Whether the origin has other content of a file by now. Raises FetchError.

    ``files``: by location. Files of two versions must not become one model. An origin that sent no validator is not
    asked, because it would send the whole content again.
    """
    for location, file in files.items():
        file_url = url if location == MODEL_NAME else sibling_url(url, location)
        record = cache.recall(requester_of(file_url).key)
        if record and record.validator and (await fetch(file_url, "", cache, **options)).digest != file.digest:
            return True
    return False


def _check_names(url: str, sha256: str, locations: Sequence[str]) -> None:
    """Raise FetchError for too many data files, or for any data files if the spec has a digest."""
    if len(locations) > MAX_FILES:
        text = f"{redact(url)} has its weights in more than {MAX_FILES} files beside it"
        raise FetchError(FetchReason.TOO_LARGE, f"{text}: {packing_advice(locations)}")
    if sha256:
        text = f"spec.sha256 covers only the model file, and not its weights in {_short_list(locations)}"
        raise FetchError(FetchReason.DIGEST_MISMATCH, f"{redact(url)}: {text}: {packing_advice(locations)}")


async def _fetch_data(
    url: str, locations: Sequence[str], location: str, cache: Cache, progress: Progress | None, **options: Any
) -> Fetched:
    """Fetch the data file at ``location``, one of a model's ``locations``. Raises FetchError."""
    if (path := local_path(url)) is not None:
        await in_thread(_check_path, path.parent, location)
    try:
        return await fetch(sibling_url(url, location), "", cache, progress, **options)
    except FetchError as error:
        text = f"{redact(url)} has its weights in {location!r} beside it: {error}: {packing_advice(locations)}"
        raise FetchError(error.reason, text, temporary=error.temporary, status=error.status) from error


def data_files(path: Path) -> list[str]:
    """Return the locations of the external data of an ONNX file, sorted; empty for any other file. Raises OSError.

    The file is mapped into memory. If it became shorter meanwhile, the kernel would end this process: use
    ``data_locations`` with the bytes of a file that somebody may write.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return data_locations(content)


def data_locations(content: mmap.mmap | bytes) -> list[str]:
    """Return the locations of the external data in the content of an ONNX file, sorted.

    Not all of them if there are more than MAX_FILES; empty if the content is not ONNX.
    """
    names: set[str] = set()
    try:
        for record in records(content):
            names |= {str(PurePosixPath(name)) for key, name in record.entries if key == "location" and name} - {"."}
            if len(names) > MAX_FILES:
                break
    except MalformedProtobufError:  # no ONNX, or a damaged one: its trial reports it
        return []
    return sorted(names)


def digest_of(path: Path) -> str:
    """Return the digest (SHA-256 in hexadecimal) that a local model, with its external data, would have in the cache.

    Raises OSError and FetchError. Blocks: it reads all files.
    """
    locations = data_files(path)
    if not locations:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    for location in locations:
        if not is_inside(location):
            text = f"{path} takes its weights from {location[:200]!r}, which is not in its folder"
            raise FetchError(FetchReason.UNSAFE_ARCHIVE, f"{text}: export it with the data in its folder")
        _check_path(path.parent, location)
    digest = hashlib.sha256()
    _pack({MODEL_NAME: path} | {location: path.parent / location for location in locations}, digest.update)
    return digest.hexdigest()


def sibling_url(url: str, location: str) -> str:
    """Return the URL of a data file: that of the model (``url``) with another last step of the path."""
    if url.startswith("/"):
        return str(Path(url).parent / location)
    parts = urlsplit(url)
    path = f"{parts.path.rpartition('/')[0]}/{quote(location)}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def packing_advice(files: Sequence[str]) -> str:
    """Return what a user can do with a model whose data files cannot be fetched with it."""
    names = " ".join(files) if len(files) <= 3 else "and all its data files"
    whole = "onnx.save(onnx.load('model.onnx'), 'whole.onnx')"
    return (
        f"pack all of them into an archive (tar -czf model.tar.gz model.onnx {names}) and give its url, "
        f"or save the model as one file ({whole})"
    )


def _short_list(files: Sequence[str]) -> str:
    """Return the first three names, and the number of the others."""
    more = f" and {len(files) - 3} more files" if len(files) > 3 else ""
    return ", ".join(files[:3]) + more


def is_inside(location: str) -> bool:
    """Whether a location is a plain path below the model's folder, within the limits, and not MODEL_NAME."""
    parts = PurePosixPath(location).parts
    is_outside = location.startswith("/") or ".." in parts or len(parts) > MAX_DEPTH + 1
    is_strange = MEMORY_ADDRESS_PREFIX in location or "\\" in location or not location.isprintable()
    is_strange |= len(location) > MAX_LOCATION
    return not is_outside and not is_strange and location != MODEL_NAME


def _check_path(folder: Path, location: str) -> None:
    """Raise FetchError if a link, or anything but folders and a regular file, is on the path to ``location``."""
    path, parts = folder, PurePosixPath(location).parts
    for index, part in enumerate(parts):
        path /= part
        try:
            file_status = path.lstat()
        except OSError:
            return  # the fetcher reports it
        if not (stat.S_ISREG if index == len(parts) - 1 else stat.S_ISDIR)(file_status.st_mode):
            kind = "a link" if stat.S_ISLNK(file_status.st_mode) else "not a regular file"
            text = f"the model's data file {path} is {kind}: put the file itself there"
            raise FetchError(FetchReason.UNSAFE_ARCHIVE, text)


def _pack_into_cache(cache: Cache, files: Mapping[str, Path]) -> Fetched:
    """Pack files, by their names in it, into a tar in the cache; return the cached file. Blocks. Raises OSError."""
    digest = hashlib.sha256()
    _pack(files, digest.update)
    path = cache.path(digest.hexdigest())
    if path.exists():
        return Fetched(path, path.name, path.stat().st_size)
    part = cache.root / "parts" / f"{path.name}.{os.getpid()}.tar"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            _pack(files, file.write)
            file.flush()
            os.fsync(file.fileno())
        return cache.keep(part, path.name)
    finally:
        part.unlink(missing_ok=True)


def _pack(files: Mapping[str, Path], write: Callable[[bytes], Any]) -> None:
    """Pass the blocks of a tar of files, by name, to ``write``. They depend only on names and contents of the files."""
    sink: Any = SimpleNamespace(write=write)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, path in files.items():
            with path.open("rb") as opened:
                member = tarfile.TarInfo(name)
                member.size = os.fstat(opened.fileno()).st_size
                tar.addfile(member, opened)
