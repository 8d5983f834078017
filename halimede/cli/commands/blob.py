"""``halimede blob``: stores, lists, downloads and deletes files at GM or nodes, over the bus.

With ``put``, this command serves the file, and GM or the node downloads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

import typer

from halimede.blobs import BlobClient, BlobServer, BusOpener, FileProvider, with_fallback
from halimede.blobs.uris import ANY, GM, SCHEME, bus_name_of, check_digest, url
from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, NotLetInError
from halimede.cli.output import console, table, warn
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError, RefusedError
from halimede.messages import BlobEntry, BlobOrder
from halimede.models import Cache, fetch
from halimede.models.cache import in_thread
from halimede.models.materialize import install_file
from halimede.names import check_name

#: seconds for a reply
REPLY_TIMEOUT_S = 30.0
#: seconds without progress until a transfer is aborted
NO_PROGRESS_TIMEOUT_S = 90.0
#: seconds between two lines of progress
PROGRESS_INTERVAL_S = 2.0
#: most seconds for a transfer
TRANSFER_TIMEOUT_S = 86_400.0
#: an argument of commands
Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="SHA-256, sha256:DIGEST or bus URL of the file.")]

blob = o.group("Transfer files over the bus, by digest: models and datasets for nodes that reach only the broker.")


@blob.command()
def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to send.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", metavar="gm|NODE", help="Where to store it.", autocompletion=completion.nodes)
    ] = GM,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Store a file at the global manager or a node, and print its bus URL and its SHA-256.

    Write both into a Model (url, sha256). GM keeps the file until `blob delete`; a node's cache may remove it when it
    needs the space and no Model uses it.

    \b
    Examples:
      halimede blob put model.onnx
      halimede blob put model.onnx --to edge0
    """
    run(lambda: put_file(o.address(broker, credentials), file, to))


@blob.command(name="list")
def list_(
    source: Annotated[
        str, typer.Option("--from", metavar="gm|NODE", help="Whose files to list.", autocompletion=completion.nodes)
    ] = GM,
    output: o.LinesOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """List the files that the global manager or a node offers.

    \b
    Examples:
      halimede blob list
      halimede blob list --from edge0 -o json
    """
    run(lambda: list_files(o.address(broker, credentials), source, as_json=output == "json"))


@blob.command()
def get(
    digest: Digest,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    source: Annotated[
        str,
        typer.Option("--from", metavar="any|gm|NODE", help="Where to look first.", autocompletion=completion.nodes),
    ] = "any",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Download a file and verify it. If the download is interrupted, the next call resumes it.

    \b
    Examples:
      halimede blob get 2fea1e98e29e4b4a1c94ad3a2a9cb9d9c5a1a0a6dd1a0b8fbd1ad1a1ca3f7a55 model.onnx
      halimede blob get $(halimede blob list -o json | jq -r .digest | head -1) model.onnx --from gm
    """
    run(lambda: fetch_file(o.address(broker, credentials), digest, out, source))


@blob.command()
def delete(digest: Digest, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Delete a file from the global manager. Nodes that hold it keep it as long as they need it.

    \b
    Examples:
      halimede blob delete 2fea1e98e29e4b4a1c94ad3a2a9cb9d9c5a1a0a6dd1a0b8fbd1ad1a1ca3f7a55
    """
    run(lambda: delete_file(o.address(broker, credentials), digest))


async def put_file(broker: BrokerAddress, file: Path, to: str) -> None:
    """Let ``gm`` or a node store a file; print its URL and digest. Raises HalimedeError."""
    target_name = _bus_name("--to", to)
    digest, size = await in_thread(_measure, file)

    async def find(requested: str) -> Path | None:
        return file if requested == digest else None

    async with _connect(broker) as client:
        server = BlobServer(client.bus, client.name, FileProvider([find]))
        await server.start(queries=False)
        serving = asyncio.create_task(server.run(), name="give")
        order = BlobOrder(op="keep", digest=digest, size=size)
        order_task = asyncio.create_task(client.order(target_name, order, timeout_s=TRANSFER_TIMEOUT_S), name="order")
        try:
            await _wait_with_progress(order_task, lambda: server.stats.bytes, size, to)
        finally:
            for task in (serving, order_task):
                task.cancel()
            await asyncio.wait([serving, order_task])
    sys.stdout.write(f"url: {url(to, digest)}\nsha256: {digest}\n")


async def list_files(broker: BrokerAddress, source: str, *, as_json: bool) -> None:
    """Print the files that ``gm`` or the node ``source`` offers. Raises HalimedeError."""
    source_name = _bus_name("--from", source)
    entries: list[BlobEntry] = []
    async with _connect(broker) as client:
        while True:
            after = entries[-1].digest if entries else ""
            answer = await client.order(source_name, BlobOrder(op="list", after=after), timeout_s=REPLY_TIMEOUT_S)
            entries += answer.blobs
            if not (answer.truncated and answer.blobs):
                break
    if as_json:
        for entry in entries:
            document = {"digest": entry.digest, "size": entry.size, "url": url(source, entry.digest)}
            sys.stdout.write(json.dumps(document) + "\n")
    else:
        rows = [(entry.digest, f"{entry.size:,}", url(source, entry.digest)) for entry in entries]
        console().print(table(("DIGEST", "BYTES", "URL"), rows))


async def fetch_file(broker: BrokerAddress, digest: str, out: Path, source: str) -> None:
    """Download a file to ``out`` from ``gm``, a node or ``any`` of them, and verify it. Raises HalimedeError.

    The parts of an interrupted download stay in a hidden folder next to ``out``, until a later call completes it.
    """
    digest = _digest(digest)
    if source != ANY:
        _bus_name("--from", source)  # checks the name
    if await in_thread(out.is_dir):
        raise InvalidFieldError("OUT", str(out), "it is a folder: give the path of a file")
    partial_folder = out.parent / f".{out.name}.halimede"
    reported_at = asyncio.get_running_loop().time()

    def progress(done: int, size: int | None) -> None:
        nonlocal reported_at
        now = asyncio.get_running_loop().time()
        if size and now - reported_at >= PROGRESS_INTERVAL_S:
            reported_at = now
            warn(_progress_text(done, size))

    async with _connect(broker) as client:
        openers = {SCHEME: BusOpener(client)}  # if GM or the node is unreachable: from any holder of the digest
        fetched = await with_fallback(fetch, url(source, digest), "", Cache(partial_folder), progress, openers=openers)
    await in_thread(install_file, fetched.path, out)
    await in_thread(shutil.rmtree, partial_folder, True)  # noqa: FBT003 - a folder that cannot be removed does no harm
    sys.stdout.write(f"{out} ({fetched.size:,} bytes)\n")


async def delete_file(broker: BrokerAddress, digest: str) -> None:
    """Let GM delete a file. Raises HalimedeError."""
    digest = _digest(digest)
    async with _connect(broker) as client:
        await client.order(GM, BlobOrder(op="remove", digest=digest), timeout_s=REPLY_TIMEOUT_S)
    sys.stdout.write(f"sha256:{digest} deleted\n")


@contextlib.asynccontextmanager
async def _connect(broker: BrokerAddress) -> AsyncIterator[BlobClient]:
    """Yield a connected client for blobs. Raises NotLetInError if the broker refuses its requests."""
    async with Client.to(broker) as connection:
        client = BlobClient(connection.bus, connection.bus.client_id)
        try:
            await client.start()
            yield client
        except RefusedError as error:
            raise NotLetInError(f"{error} at {broker}: use the credentials of an operator") from error


async def _wait_with_progress(order: asyncio.Task[object], bytes_sent: Callable[[], int], size: int, to: str) -> None:
    """Wait until ``to`` has carried out the order to store a file; print the progress.

    ``bytes_sent`` returns the bytes that were sent, ``size`` is the file's. Raises HalimedeError after
    ``NO_PROGRESS_TIMEOUT_S`` without progress, and the order's error.
    """
    loop = asyncio.get_running_loop()
    sent, since = 0, loop.time()
    while not (await asyncio.wait([order], timeout=PROGRESS_INTERVAL_S))[0]:
        if (now := bytes_sent()) != sent:
            sent, since = now, loop.time()
            warn(_progress_text(min(sent, size), size))
        elif loop.time() - since > NO_PROGRESS_TIMEOUT_S:
            raise HalimedeError(f"{to} does not fetch the file: see its log, and run `halimede doctor`")
    await order


def _measure(file: Path) -> tuple[str, int]:
    """Return the SHA-256 and the bytes of a file. Raises InvalidFieldError for one that cannot be sent."""
    try:
        with file.open("rb") as opened:
            if not stat.S_ISREG(file.stat().st_mode):
                raise InvalidFieldError("FILE", str(file), "give a regular file; pack a folder as tar.gz or zip")
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
    except OSError as error:
        raise InvalidFieldError("FILE", str(file), f"cannot be read: {error.strerror}") from None
    if not size:
        raise InvalidFieldError("FILE", str(file), "it is empty: give a file with content")
    return digest, size


def _bus_name(option: str, name: str) -> str:
    """Return the name on the bus of ``gm`` or a node. Raises InvalidFieldError for ``any`` or an invalid name."""
    if name == ANY:
        raise InvalidFieldError(option, name, "give the name of a node, or gm")
    return bus_name_of(check_name(option, name))


def _digest(text: str) -> str:
    """Return the bare SHA-256 of a digest, of a digest after ``sha256:``, or of a bus URL. Raises InvalidFieldError."""
    bare = text.rpartition("/sha256/")[2] if text.startswith(f"{SCHEME}://") else text.removeprefix("sha256:")
    return check_digest("DIGEST", bare)


def _progress_text(done: int, size: int) -> str:
    """Return how much of a transfer is done, for the user; both in bytes."""
    return f"{done / 1e6:.0f} of {size / 1e6:.0f} MB"
