"""The commands on files over the bus, as a shell sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.runner import run

GM = "gm"
Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="Its SHA-256; sha256:DIGEST and a bus URL work too.")]

blob = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Files over the bus, by digest: models and datasets for nodes that reach nothing but the broker.",
)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.add_typer(blob, name="blob")


@blob.command()
def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", metavar="gm|NODE", help="Who keeps it.", autocompletion=completion.nodes)
    ] = GM,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Have the global manager or a node keep a file; prints its bus URL and its SHA-256.

    Both go into a Model (url, sha256). What GM keeps stays until `blob delete`; a node's cache may lose it when it
    needs the room and no Model names it.

    \b
    Examples:
      halimede blob put model.onnx
      halimede blob put model.onnx --to edge0
    """

    async def command() -> None:
        from halimede.cli.commands import blob_files as room

        await room.put(o.address(broker, credentials), file, to)

    run(command)


@blob.command(name="list")
def list_(
    source: Annotated[
        str, typer.Option("--from", metavar="gm|NODE", help="Whose files.", autocompletion=completion.nodes)
    ] = GM,
    output: o.LinesOption = o.LinesFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show the files that the global manager or a node gives.

    \b
    Examples:
      halimede blob list
      halimede blob list --from edge0 -o json
    """

    async def command() -> None:
        from halimede.cli.commands import blob_files as room

        await room.show(o.address(broker, credentials), source, as_json=output is o.LinesFormat.JSON)

    run(command)


@blob.command()
def get(
    digest: Digest,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    source: Annotated[
        str,
        typer.Option("--from", metavar="any|gm|NODE", help="Who is asked first.", autocompletion=completion.nodes),
    ] = "any",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Bring a file here, verified. Broken off, it goes on where it was when it is called again.

    \b
    Examples:
      halimede blob get 2fea1e98e29e4b4a1c94ad3a2a9cb9d9c5a1a0a6dd1a0b8fbd1ad1a1ca3f7a55 model.onnx
      halimede blob get $(halimede blob list -o json | jq -r .digest | head -1) model.onnx --from gm
    """

    async def command() -> None:
        from halimede.cli.commands import blob_files as room

        await room.get(o.address(broker, credentials), digest, out, source)

    run(command)


@blob.command()
def delete(digest: Digest, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Have the global manager forget a file. Nodes that hold it keep it as long as they need it.

    \b
    Examples:
      halimede blob delete 2fea1e98e29e4b4a1c94ad3a2a9cb9d9c5a1a0a6dd1a0b8fbd1ad1a1ca3f7a55
    """

    async def command() -> None:
        from halimede.cli.commands import blob_files as room

        await room.delete(o.address(broker, credentials), digest)

    run(command)


COMMANDS = ("put", "list", "get", "delete")
