"""``python -m halimede.models``: bring one model to this machine, then exit. Init containers of worker pods run it.

It retries temporary failures for a while, then exits; Kubernetes restarts it later.
Exit code: 0 when the model is there, 1 after a temporary failure, 2 after one that a person must correct.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from halimede import log as logging
from halimede.errors import InvalidFieldError
from halimede.models.address_policy import VARIABLE, AddressPolicy
from halimede.models.archive import unpack
from halimede.models.cache import Cache, Fetched, in_thread
from halimede.models.errors import FetchError, FetchReason, redact, retry_temporary
from halimede.models.external_data import DataFilesError, fetch_model
from halimede.models.fetcher import fetch
from halimede.models.materialize import deliver, deliver_folder, make_parent
from halimede.models.source_registry import local_path, open_file
from halimede.models.source_types import SourceRequest, Stream, TransferLimits, TransferRate

TEMPORARY, MISTAKE = 1, 2
#: exit code of shells for a process that SIGTERM ended
TERMINATED = 128 + signal.SIGTERM
#: Kubernetes shows this file for a container that has ended
TERMINATION_LOG = Path("/dev/termination-log")
#: of that file
MOST_BYTES = 4096
MOST_PATIENCE_S = 86_400.0
EPILOG = """\
environment for s3:// (as in Sedna's Secrets):
  S3_ENDPOINT_URL, S3_USE_HTTPS     host:port or URL of the store; 1 (default) or 0 for one without a scheme
  ACCESS_KEY_ID, SECRET_ACCESS_KEY  neither: a public bucket
  S3_REGION                         default us-east-1

exit code: 0: success, 1: a temporary failure, after --patience, 2: a mistake that you can correct

  python -m halimede.models --url https://models.example/small.onnx --cache ~/models --out /downloads/small.onnx
  python -m halimede.models --url /models/small.onnx --check
"""
log = structlog.get_logger()
#: seconds between two lines on a download's progress
PROGRESS_S = 10.0
#: the scheme of files on the bus
BUS = "bus"
#: a cache for one download, next to its target
OWN_CACHE = ".halimede-models"


def parser() -> argparse.ArgumentParser:
    """Return the command line's definition."""
    cli = argparse.ArgumentParser(
        prog="python -m halimede.models",
        description="Download a model through this machine's cache, verify it, and write a file that workers can read.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("--url", required=True, help="http(s)://, s3://bucket/key, file:// or an absolute path")
    cli.add_argument("--sha256", default="", metavar="DIGEST", help="64 hexadecimal digits. Default: no verification")
    cli.add_argument("--cache", metavar="DIR", help="the node's model cache")
    cli.add_argument("--out", metavar="PATH", help="the file to write")
    cli.add_argument(
        "--allow",
        default=os.environ.get(VARIABLE, ""),
        metavar="WHAT",
        help="private addresses from which to download: loopback, private, link-local, networks such as "
        f"10.0.0.0/8, names of hosts, separated by commas (default: ${VARIABLE}, else none)",
    )
    cli.add_argument("--unpack", action="store_true", help="of an archive (tar, tar.gz, zip), --out is its folder")
    cli.add_argument(
        "--own-code",
        action="store_true",
        help="the worker's own code may use an ONNX file whose data files cannot be fetched with it",
    )
    cli.add_argument("--check", action="store_true", help="only verify a file of this machine")
    cli.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long to retry temporary failures (default: %(default)g)",
    )
    return cli


def main(arguments: Sequence[str] | None = None, termination_log: Path = TERMINATION_LOG) -> int:
    """Run and return the exit code."""
    options = parser().parse_args(arguments)
    logging.configure(level="WARNING")
    try:
        model = _requested(options)
        if options.check:
            write_line(f"{asyncio.run(check(model))} is valid")
        else:
            asyncio.run(bring(model, _folder("--cache", options.cache), _folder("--out", options.out)))
    except (InvalidFieldError, FetchError) as error:
        text = f"{error.reason}: {error}" if isinstance(error, FetchError) else str(error)
        write_line(text)
        # outside of a container the file does not exist, and is not created
        with contextlib.suppress(OSError), termination_log.open("r+b") as file:
            file.truncate()
            file.write(text.encode()[:MOST_BYTES])
        return TEMPORARY if isinstance(error, FetchError) and error.temporary else MISTAKE
    return 0


def write_line(text: str) -> None:
    """Write a line to stderr."""
    print(f"halimede.models: {text}", file=sys.stderr, flush=True)


def _requested(options: argparse.Namespace) -> RequestedModel:
    if not 0 <= options.patience <= MOST_PATIENCE_S:
        raise InvalidFieldError("--patience", options.patience, f"write seconds from 0 to {MOST_PATIENCE_S:.0f}")
    if not options.check and not (options.cache and options.out):
        raise InvalidFieldError(
            "--out", options.out or "", "give --cache and --out, or --check for a file of the machine"
        )
    return RequestedModel(
        options.url,
        options.sha256,
        options.patience,
        policy=AddressPolicy.parse(options.allow, "--allow"),
        unpack=options.unpack,
        own_code=options.own_code,
    )


def _folder(option: str, text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise InvalidFieldError(option, text, "there is no such user: give a path") from None


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """A model: its URL, its digest (or empty), and the seconds for which temporary failures are retried.

    Without a policy, that of the environment applies. ``unpack``: an archive becomes the folder that is in it.
    ``own_code``: as in the LC, a user's own code may use an ONNX file without its data files.
    """

    url: str
    sha256: str = ""
    patience_s: float = 120.0
    limits: TransferLimits = field(default_factory=TransferLimits)
    policy: AddressPolicy | None = None
    unpack: bool = False
    own_code: bool = False

    def __post_init__(self) -> None:
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise InvalidFieldError("--sha256", self.sha256, "write 64 lower-case hexadecimal digits")


async def bring(model: RequestedModel, cache: Path, out: Path) -> None:
    """Bring a model through the node's cache to ``out``. Raises FetchError.

    If the node's cache cannot be used, it uses one of its own: the worker must start, although a later download then
    takes longer.
    """
    own = out.parent / OWN_CACHE
    using = cache

    async def attempt() -> None:
        nonlocal using
        try:
            fetched = await _fetch(model, Cache(using))
        except FetchError as error:
            if error.reason not in {FetchReason.CACHE_FAILED, FetchReason.DISK_FULL} or using == own:
                raise
            log.warning("download without the node's cache", reason=str(error))
            await in_thread(make_parent, out)  # before the cache in that folder creates it with private permissions
            using = own
            fetched = await _fetch(model, Cache(using))
        await _deliver(model, Cache(using), fetched, out)

    try:
        await retry_temporary(attempt, model.patience_s)
    finally:
        await in_thread(shutil.rmtree, own, True)  # noqa: FBT003  # it may not exist
    write_line(f"{redact(model.url)} is at {out}")


async def check(model: RequestedModel) -> Path:
    """Return the path of a local model that exists and has the digest. Raises FetchError and InvalidFieldError."""
    path = local_path(model.url)
    if path is None:
        raise InvalidFieldError("--url", redact(model.url), "only a file of the node can be checked: /path or file://")

    async def attempt() -> None:
        async with open_file(path, SourceRequest()) as stream:
            sha256, size = hashlib.sha256(), 0
            if stream.blocks is not None:
                async for block in stream.blocks:
                    size += len(block)
                    if not model.sha256:
                        break  # without a digest it only has to be readable
                    sha256.update(block)
        if not size:
            raise FetchError(FetchReason.EMPTY_FILE, f"{path} is empty: a model file was expected")
        if model.sha256 and sha256.hexdigest() != model.sha256:
            text = f"{path} has sha256 {sha256.hexdigest()}, not {model.sha256}: correct one of the two"
            raise FetchError(FetchReason.DIGEST_MISMATCH, text)

    await retry_temporary(attempt, model.patience_s)
    return path


async def _deliver(model: RequestedModel, cache: Cache, fetched: Fetched, out: Path) -> None:
    with cache.using(fetched.digest):
        source = await unpack(cache, fetched) if model.unpack else fetched.path
        await in_thread(deliver_folder if source.is_dir() else deliver, source, out)


async def _fetch(model: RequestedModel, cache: Cache) -> Fetched:
    loop = asyncio.get_running_loop()
    printed_at = loop.time()
    speed = TransferRate(loop.time)

    def progress(done: int, total: int | None) -> None:
        nonlocal printed_at
        rate = speed.update(done)
        if loop.time() - printed_at >= PROGRESS_S:
            printed_at = loop.time()
            whole = f" of {total / 1e6:.0f}" if total else ""
            write_line(f"{done / 1e6:.0f}{whole} MB downloaded, {rate / 1e6:.1f} MB/s")

    # an archive becomes a folder, and so do a model and its data files
    from_origin = fetch_model if model.unpack else fetch
    openers = {BUS: _LeftToNode}
    try:
        return await from_origin(
            model.url, model.sha256, cache, progress, limits=model.limits, policy=model.policy, openers=openers
        )
    except DataFilesError as error:
        if error.temporary or not model.own_code:
            raise
        write_line(f"only the worker's own code can use this model: {error}")
        return error.model


class _LeftToNode(contextlib.AbstractAsyncContextManager[Stream]):
    """Opens no ``bus://`` URL: on the bus is the node's local controller, which fetches the file to the cache."""

    def __init__(self, url: str, *_: object) -> None:
        self._url = url

    async def __aenter__(self) -> Stream:
        """Raise a temporary FetchError."""
        text = f"{self._url}: the node's local controller has not fetched it to the node's cache yet"
        raise FetchError(FetchReason.UNREACHABLE, text, temporary=True)

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""


if __name__ == "__main__":
    # process 1 of a container ignores SIGTERM without a handler; the next process resumes the partial download
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    os.umask(0o077)  # only its owner may read the cache, as with the local controller's
    sys.exit(main())
