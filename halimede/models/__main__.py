"""``python -m halimede.models``: bring one model to this machine, then exit. Init containers of worker pods run it.

Temporary failures are retried for a while; then the process exits, and Kubernetes restarts it later.
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
from dataclasses import dataclass
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
from halimede.models.materialize import install_file, install_folder, make_parent
from halimede.models.source_registry import local_path, open_file
from halimede.models.source_types import SourceRequest, Stream, TransferRate

#: exit codes
TEMPORARY_FAILURE, MISTAKE = 1, 2
#: exit code of shells for a process that SIGTERM ended
TERMINATED = 128 + signal.SIGTERM
#: the file whose content Kubernetes shows for a container that has ended
TERMINATION_LOG = Path("/dev/termination-log")
#: most bytes of that file
MAX_LOG_BYTES = 4096
#: most seconds of ``--patience``
MAX_PATIENCE_S = 86_400.0
#: the end of the help text
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
PROGRESS_PERIOD_S = 10.0
#: the scheme of files that other processes send through the broker
BUS_SCHEME = "bus"
#: the folder of a cache for one download, next to its target
OWN_CACHE_NAME = ".halimede-models"


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
    cli.add_argument("--unpack", action="store_true", help="unpack an archive (tar, tar.gz, zip) to the folder --out")
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
    """Run with the process's arguments (None) or the given ones, and return the exit code.

    An error is one line on standard error and in ``termination_log``, if that exists. Raises SystemExit for what
    argparse refuses.
    """
    options = parser().parse_args(arguments)
    logging.configure(level="WARNING")
    try:
        model = _requested_model(options)
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
            file.write(text.encode()[:MAX_LOG_BYTES])
        return TEMPORARY_FAILURE if isinstance(error, FetchError) and error.temporary else MISTAKE
    return 0


def write_line(text: str) -> None:
    """Write a line to standard error, with the program's name."""
    print(f"halimede.models: {text}", file=sys.stderr, flush=True)


def _requested_model(options: argparse.Namespace) -> RequestedModel:
    """Return what the options request. Raises InvalidFieldError."""
    if not 0 <= options.patience <= MAX_PATIENCE_S:
        raise InvalidFieldError("--patience", options.patience, f"write seconds from 0 to {MAX_PATIENCE_S:.0f}")
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
    """Return the absolute path that an option has, with ``~`` expanded. Raises InvalidFieldError."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise InvalidFieldError(option, text, "there is no such user: give a path") from None


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """A model that is brought here or checked. Raises InvalidFieldError for a bad digest.

    Attributes:
        url: http(s)://, s3://bucket/key, file:// or an absolute path.
        sha256: 64 hexadecimal digits; empty: the content is not verified.
        patience_s: seconds for which temporary failures are retried.
        policy: the addresses to download from.
        unpack: an archive becomes the folder that is in it, and an ONNX file is fetched with its data files.
        own_code: the worker runs its user's own code, which may use an ONNX file without its data files.

    """

    url: str
    sha256: str
    patience_s: float
    policy: AddressPolicy
    unpack: bool
    own_code: bool

    def __post_init__(self) -> None:
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise InvalidFieldError("--sha256", self.sha256, "write 64 lower-case hexadecimal digits")


async def bring(model: RequestedModel, cache: Path, out: Path) -> None:
    """Bring a model through the node's cache, in the folder ``cache``, to the path ``out``. Raises FetchError.

    If the node's cache cannot be used, a cache next to ``out`` is used and removed afterwards: the worker starts, and
    only later downloads take longer.
    """
    own_cache = out.parent / OWN_CACHE_NAME
    used_cache = cache

    async def attempt() -> None:
        """Fetch and install the model once. Raises FetchError."""
        nonlocal used_cache
        try:
            fetched = await _fetch(model, Cache(used_cache))
        except FetchError as error:
            if error.reason not in {FetchReason.CACHE_FAILED, FetchReason.DISK_FULL} or used_cache == own_cache:
                raise
            log.warning("download without the node's cache", reason=str(error))
            await in_thread(make_parent, out)  # before the cache in that folder creates it with private permissions
            used_cache = own_cache
            fetched = await _fetch(model, Cache(used_cache))
        await _install(model, Cache(used_cache), fetched, out)

    try:
        await retry_temporary(attempt, model.patience_s)
    finally:
        await in_thread(shutil.rmtree, own_cache, True)  # noqa: FBT003  # it may not exist
    write_line(f"{redact(model.url)} is at {out}")


async def check(model: RequestedModel) -> Path:
    """Return the path of a local model after comparing its digest, or, without one, after reading its first bytes.

    Raises FetchError, and InvalidFieldError if the URL is not local.
    """
    path = local_path(model.url)
    if path is None:
        raise InvalidFieldError("--url", redact(model.url), "only a file of the node can be checked: /path or file://")

    async def attempt() -> None:
        """Read the file once. Raises FetchError."""
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


async def _install(model: RequestedModel, cache: Cache, fetched: Fetched, out: Path) -> None:
    """Copy a fetched file, or the folder that it is unpacked to, to ``out``. Raises FetchError."""
    with cache.pin(fetched.digest):
        source = await unpack(cache, fetched) if model.unpack else fetched.path
        await in_thread(install_folder if source.is_dir() else install_file, source, out)


async def _fetch(model: RequestedModel, cache: Cache) -> Fetched:
    """Return the model's file in the cache, and write lines about the progress. Raises FetchError."""
    loop = asyncio.get_running_loop()
    printed_at = loop.time()
    transfer_rate = TransferRate(loop.time)

    def progress(present: int, total: int | None) -> None:
        """Write a line, at most one in PROGRESS_PERIOD_S seconds."""
        nonlocal printed_at
        rate = transfer_rate.update(present)
        if loop.time() - printed_at >= PROGRESS_PERIOD_S:
            printed_at = loop.time()
            of_total = f" of {total / 1e6:.0f}" if total else ""
            write_line(f"{present / 1e6:.0f}{of_total} MB downloaded, {rate / 1e6:.1f} MB/s")

    # an archive becomes a folder, and so do a model and its data files
    from_origin = fetch_model if model.unpack else fetch
    openers = {BUS_SCHEME: _LeftToNode}
    try:
        return await from_origin(model.url, model.sha256, cache, progress, policy=model.policy, openers=openers)
    except DataFilesError as error:
        if error.temporary or not model.own_code:
            raise
        write_line(f"only the worker's own code can use this model: {error}")
        return error.model


class _LeftToNode(contextlib.AbstractAsyncContextManager[Stream]):
    """The opener of ``bus://`` URLs, which always fails: the node's local controller fetches them to the cache."""

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
