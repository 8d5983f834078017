"""The command that shows one frame's way, as a shell sees it."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.runner import run


def add_to(app: typer.Typer) -> None:
    """Register this command."""
    app.command()(trace)


def trace(
    frame: Annotated[
        str, typer.Argument(metavar="[FRAME_ID]", help="Field id of its result: 32 hex digits.", show_default=False)
    ] = "",
    last: Annotated[bool, typer.Option("--last", help="The next frame that is answered.")] = False,
    hard: Annotated[bool, typer.Option("--hard", help="The next hard one, which the cloud was asked for.")] = False,
    service: Annotated[
        str,
        typer.Option(
            "--service",
            "-s",
            metavar="NAME",
            help="With --last and --hard: only of this service.",
            show_default=False,
            autocompletion=completion.services,
        ),
    ] = "",
    namespace: o.Namespace = "default",
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for a result.")] = 30.0,
    output: o.LinesOption = o.LinesFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show one frame's way: its steps at the edge and in the cloud, and how long each took.

    Workers remember their last 4,096 frames each. Times count from the edge's receipt of the frame; the cloud's steps
    stand inside the request that they answered, since clocks of machines differ.

    \b
    Examples:
      halimede trace --last
      halimede trace --hard -s digits
      halimede trace 0123456789abcdef0123456789abcdef
      halimede trace $(halimede results digits --limit 1 -o json | jq -r .id) -o json
    """
    if bool(frame) == (last or hard):
        raise typer.BadParameter("give a FRAME_ID, or --last, or --hard")
    if service and frame:
        raise typer.BadParameter("-s goes with --last and --hard: a frame's id says which one it is")

    async def command() -> None:
        from halimede.cli.commands import trace as room
        from halimede.cli.output import Format
        from halimede.names import check_name

        if service:
            check_name("--service", service)
        wanted = room.FrameQuery(frame.lower(), service, o.namespace_of(namespace), hard, timeout)
        await room.trace(o.address(broker, credentials), wanted, Format(output))

    run(command)
