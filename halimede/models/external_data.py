"""Brings an ONNX model together with its external data: the files beside it that hold its weights.

PyTorch's exporter writes ``model.onnx`` and ``model.onnx.data``. The model file names its data files; they are fetched
from the same folder of the same origin, and model and data become one tar of the cache. Its bytes depend only on the
content of the files. So one digest covers all of them, and an unpacked model has its data beside it, as if its user had
packed them into an archive.
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
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error, redact
from halimede.models.fetcher import Progress, fetch
from halimede.models.source_registry import asker, local_path
from halimede.models.source_types import SourceOpener, TransferLimits
from halimede.system.onnx_file import MalformedProtobufError, records

#: the name of the model file in the tar
MODEL = "model.onnx"
#: attempts to fetch a model and its data while its origin replaces them
MOST_ATTEMPTS = 3
#: the most data files of one model, and the most folders above one
MAX_FILES, MAX_DEPTH = 256, 8
#: the most characters of a location: messages quote it
MAX_LOCATION = 1024
#: a location that ONNX Runtime interprets as an address in memory
MEMORY_MARK = "_ORT_MEM_ADDR_"


class DataFilesError(FetchError):
    """The data files of a model cannot be fetched with it. ``model``: the model file, which is here without them."""

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
    """Return the ONNX model of ``url`` as ``fetch`` does; with its external data, if it has any, as a tar.

    Raises FetchError, of which DataFilesError has the model file. The digest of a spec covers one file, so a model with
    data files must not have one.
    """
    limits = limits or TransferLimits()
    common: dict[str, Any] = {"policy": policy, "openers": openers}
    for _ in range(MOST_ATTEMPTS):
        fetched = await fetch(url, sha256, cache, progress, limits=limits, **common)
        with cache.using(fetched.digest):
            names = await in_thread(data_files, fetched.path)
            if not names or not all(is_inside(location) for location in names):
                return fetched  # the trial of a model that names files outside of its folder refuses it
            files = {MODEL: fetched}
            try:
                _check_names(url, sha256, names)
                for location in names:
                    remaining = replace(limits, max_bytes=limits.max_bytes - sum(file.size for file in files.values()))
                    files[location] = await _fetch_data(
                        url, names, location, cache, progress, limits=remaining, **common
                    )
                if await _is_replaced(url, files, cache, limits=limits, **common):
                    continue
            except FetchError as error:
                raise DataFilesError(fetched, error) from error
            try:
                packed = await in_thread(_keep, cache, {location: file.path for location, file in files.items()})
            except OSError as error:
                raise disk_error(f"the model cache {cache.root}", error) from error
        return replace(packed, fresh=all(file.fresh for file in files.values()))
    text = f"{redact(url)} or its data files were replaced {MOST_ATTEMPTS} times while they were fetched"
    raise FetchError(FetchReason.INTERRUPTED, text, temporary=True)


async def _is_replaced(url: str, files: Mapping[str, Fetched], cache: Cache, **more: Any) -> bool:
    """Whether the origin has other content of one of the files by now. Raises FetchError.

    Files of two versions must not become one model. An origin whose content has no validator would send all of it.
    """
    for location, file in files.items():
        address = url if location == MODEL else sibling_url(url, location)
        record = cache.recall(asker(address).key)
        if record and record.validator and (await fetch(address, "", cache, **more)).digest != file.digest:
            return True
    return False


def _check_names(url: str, sha256: str, names: Sequence[str]) -> None:
    """Raise FetchError if no such model may have these data files."""
    if len(names) > MAX_FILES:
        text = f"{redact(url)} has its weights in more than {MAX_FILES} files beside it"
        raise FetchError(FetchReason.TOO_LARGE, f"{text}: {advice(names)}")
    if sha256:
        text = f"spec.sha256 covers only the model file, and not its weights in {_listed(names)}"
        raise FetchError(FetchReason.DIGEST_MISMATCH, f"{redact(url)}: {text}: {advice(names)}")


async def _fetch_data(
    url: str, names: Sequence[str], location: str, cache: Cache, progress: Progress | None, **more: Any
) -> Fetched:
    """Fetch one of the data files of a model. Raises FetchError."""
    if (path := local_path(url)) is not None:
        await in_thread(_check_path, path.parent, location)
    try:
        return await fetch(sibling_url(url, location), "", cache, progress, **more)
    except FetchError as error:
        text = f"{redact(url)} has its weights in {location!r} beside it: {error}: {advice(names)}"
        raise FetchError(error.reason, text, temporary=error.temporary, status=error.status) from error


def data_files(path: Path) -> list[str]:
    """Return the locations of the external data of an ONNX file, sorted; empty for any other file.

    The file must not become shorter meanwhile, which would end this process: see ``locations`` for one that may.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return locations(content)


def locations(content: mmap.mmap | bytes) -> list[str]:
    """Return the locations of the external data of an ONNX model, sorted, at most one more than ``MAX_FILES``."""
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
    """Return the digest that a local model file has in the cache, with its external data. Raises OSError, FetchError.

    Blocks: it reads all files.
    """
    names = data_files(path)
    if not names:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    for location in names:
        if not is_inside(location):
            text = f"{path} takes its weights from {location[:200]!r}, which is not in its folder"
            raise FetchError(FetchReason.UNSAFE_ARCHIVE, f"{text}: export it with the data in its folder")
        _check_path(path.parent, location)
    digest = hashlib.sha256()
    _pack({MODEL: path} | {location: path.parent / location for location in names}, digest.update)
    return digest.hexdigest()


def sibling_url(url: str, location: str) -> str:
    """Return the URL of a data file: of the same origin, folder and query as the model's."""
    if url.startswith("/"):
        return str(Path(url).parent / location)
    parts = urlsplit(url)
    path = f"{parts.path.rpartition('/')[0]}/{quote(location)}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def advice(files: Sequence[str]) -> str:
    """Return what to do with a model whose data files cannot be fetched with it."""
    names = " ".join(files) if len(files) <= 3 else "and all its data files"
    whole = "onnx.save(onnx.load('model.onnx'), 'whole.onnx')"
    return (
        f"pack all of them into an archive (tar -czf model.tar.gz model.onnx {names}) and give its url, "
        f"or save the model as one file ({whole})"
    )


def _listed(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more files" if len(files) > 3 else ""
    return ", ".join(files[:3]) + more


def is_inside(location: str) -> bool:
    """Whether a location is below the model's folder, and another file than the model itself."""
    parts = PurePosixPath(location).parts
    outside = location.startswith("/") or ".." in parts or len(parts) > MAX_DEPTH + 1
    strange = MEMORY_MARK in location or "\\" in location or not location.isprintable()
    strange |= len(location) > MAX_LOCATION
    return not outside and not strange and location != MODEL


def _check_path(folder: Path, location: str) -> None:
    """Refuse links and what is no regular file, at any place of the path. Raises FetchError."""
    path, parts = folder, PurePosixPath(location).parts
    for i, part in enumerate(parts):
        path /= part
        try:
            facts = path.lstat()
        except OSError:
            return  # the fetcher reports it
        if not (stat.S_ISREG if i == len(parts) - 1 else stat.S_ISDIR)(facts.st_mode):
            what = "a link" if stat.S_ISLNK(facts.st_mode) else "not a regular file"
            text = f"the model's data file {path} is {what}: put the file itself there"
            raise FetchError(FetchReason.UNSAFE_ARCHIVE, text)


def _keep(cache: Cache, files: Mapping[str, Path]) -> Fetched:
    """Pack files into the cache."""
    digest = hashlib.sha256()
    _pack(files, digest.update)
    if cache.path(digest.hexdigest()).exists():
        with cache.path(digest.hexdigest()).open("rb") as file:
            return Fetched(cache.path(digest.hexdigest()), digest.hexdigest(), os.fstat(file.fileno()).st_size)
    part = cache.root / "parts" / f"{digest.hexdigest()}.{os.getpid()}.tar"
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            _pack(files, file.write)
            file.flush()
            os.fsync(file.fileno())
        return cache.keep(part, digest.hexdigest())
    finally:
        part.unlink(missing_ok=True)


def _pack(files: Mapping[str, Path], write: Callable[[bytes], Any]) -> None:
    """Write a tar whose bytes depend only on names and contents."""
    with tarfile.open(fileobj=_Sink(write), mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for name, path in files.items():
            with path.open("rb") as file:
                member = tarfile.TarInfo(name)
                member.size = os.fstat(file.fileno()).st_size
                tar.addfile(member, file)


class _Sink:
    """A file object for a tar that is only written."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self.write = write
