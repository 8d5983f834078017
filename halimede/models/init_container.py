"""What the init container of a worker does: bring a model to where its worker looks for it, or see that it is there.

Temporary failures are tried again for a while; after that the caller ends, and whoever started it tries again later.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from halimede.errors import InvalidFieldError
from halimede.models.address_policy import AddressPolicy
from halimede.models.archive import unpack
from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, redact, retry_temporary
from halimede.models.fetcher import fetch
from halimede.models.materialize import deliver, deliver_folder, make_parent
from halimede.models.source_registry import local_path, open_file
from halimede.models.source_types import SourceRequest, TransferLimits, TransferRate

log = structlog.get_logger()

#: seconds between two lines on a download's progress
PROGRESS_S = 10.0
#: a cache for one download, beside what it brings
OWN_CACHE = ".halimede-models"


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """A model: where from, its digest (or empty), and seconds until temporary failures are not tried again.

    Without a policy, that of the environment counts. ``unpack``: an archive becomes the folder that is in it.
    """

    url: str
    sha256: str = ""
    patience_s: float = 120.0
    limits: TransferLimits = field(default_factory=TransferLimits)
    policy: AddressPolicy | None = None
    unpack: bool = False

    def __post_init__(self) -> None:
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise InvalidFieldError("--sha256", self.sha256, "write 64 lower-case hexadecimal digits")


async def bring(wanted: RequestedModel, cache: Path, out: Path, write_line: Callable[[str], None]) -> None:
    """Bring a model through the node's cache to ``out``. ``write_line`` gets lines on the way. Raises FetchError.

    A cache that cannot be used is done without: the worker is worth more than the next download.
    """
    own = out.parent / OWN_CACHE
    using = cache

    async def attempt() -> None:
        nonlocal using
        try:
            fetched = await _fetch(wanted, Cache(using), write_line)
        except FetchError as error:
            if error.reason not in {FetchReason.CACHE_FAILED, FetchReason.DISK_FULL} or using == own:
                raise
            log.warning("downloading without the node's cache", reason=str(error))
            await in_thread(make_parent, out)  # before the cache in that folder makes it for this process alone
            using = own
            fetched = await _fetch(wanted, Cache(using), write_line)
        await _deliver(wanted, Cache(using), fetched, out)

    try:
        await retry_temporary(attempt, wanted.patience_s)
    finally:
        await in_thread(shutil.rmtree, own, True)  # noqa: FBT003  # it may not be there
    write_line(f"{redact(wanted.url)} is at {out}")


async def check(wanted: RequestedModel) -> Path:
    """Return the local path of a model that is there and has the digest. Raises FetchError and InvalidFieldError."""
    path = local_path(wanted.url)
    if path is None:
        raise InvalidFieldError("--url", redact(wanted.url), "only a file of the node can be checked: /path or file://")

    async def attempt() -> None:
        async with open_file(path, SourceRequest()) as stream:
            sha256, size = hashlib.sha256(), 0
            if stream.blocks is not None:
                async for block in stream.blocks:
                    size += len(block)
                    if not wanted.sha256:
                        break  # that it can be read is all there is to know
                    sha256.update(block)
        if not size:
            raise FetchError(FetchReason.EMPTY_FILE, f"{path} is empty: a model file was expected")
        if wanted.sha256 and sha256.hexdigest() != wanted.sha256:
            text = f"{path} has sha256 {sha256.hexdigest()}, not {wanted.sha256}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)

    await retry_temporary(attempt, wanted.patience_s)
    return path


async def _deliver(wanted: RequestedModel, cache: Cache, fetched: Fetched, out: Path) -> None:
    with cache.using(fetched.digest):
        place = await unpack(cache, fetched) if wanted.unpack else fetched.path
        await in_thread(deliver_folder if place.is_dir() else deliver, place, out)


async def _fetch(wanted: RequestedModel, cache: Cache, write_line: Callable[[str], None]) -> Fetched:
    loop = asyncio.get_running_loop()
    told = loop.time()
    speed = TransferRate(loop.time)

    def progress(done: int, total: int | None) -> None:
        nonlocal told
        rate = speed.update(done)
        if loop.time() - told >= PROGRESS_S:
            told = loop.time()
            whole = f" of {total / 1e6:.0f}" if total else ""
            write_line(f"{done / 1e6:.0f}{whole} MB are here, {rate / 1e6:.1f} MB/s")

    return await fetch(wanted.url, wanted.sha256, cache, progress, limits=wanted.limits, policy=wanted.policy)
