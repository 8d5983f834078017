"""The commands that move or follow data, as a shell sees them: logs, results, publish."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import options as o
from halimede.cli.run import run


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (logs, results, publish):
        app.command()(command)


def logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A service (all its workers) or one worker.")],
    namespace: o.Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(metavar="LINES", min=-1, help="Begin with this many lines; -1: all.")] = 100,
    node: Annotated[
        str, typer.Option(metavar="NODE", help="Ask this node for worker NAME, whatever GM knows.", show_default=False)
    ] = "",
    broker: o.Broker = "",
) -> None:
    """Show what workers wrote.

    \b
    Examples:
      halimede logs digits
      halimede logs digits-edge-edge0 -f
      halimede logs digits-edge-edge0 --node edge0 --tail -1
    """

    async def command() -> int:
        from halimede.cli import logs as room
        from halimede.names import check_name

        check_name("NAME", name)
        if node:
            check_name("--node", node)
        return await room.logs(o.address(broker), name, o.namespace_of(namespace), node, follow=follow, tail=tail)

    run(command)


def results(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The service.")],
    namespace: o.Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C (or --limit).")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after so many. Without -f: 10.", show_default=False)
    ] = None,
    output: o.LinesOption = o.Lines.TABLE,
    broker: o.Broker = "",
) -> None:
    """Show final answers as they come. A frame that was answered again after a broken connection is shown once.

    \b
    Examples:
      halimede results -f digits
      halimede results digits --limit 1 -o json
      halimede results -f digits -o json | jq .label
    """

    async def command() -> None:
        from halimede.cli import results as room
        from halimede.cli.output import Format

        most = limit or (0 if follow else 10)
        await room.results(o.address(broker), service, o.namespace_of(namespace), most, Format(output))

    run(command)


def publish(
    paths: Annotated[list[str], typer.Argument(metavar="FILE_OR_FOLDER...", help="JPEG and PNG files, or folders.")],
    camera: Annotated[str, typer.Option(metavar="NAME", help="The camera to be.")],
    namespace: o.Namespace = "default",
    fps: Annotated[
        float,
        typer.Option(
            min=0, help="Frames a second; 0: as fast as the broker takes them (its queues may then drop some)."
        ),
    ] = 25.0,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Send all of them N times.")] = 1,
    loop: Annotated[bool, typer.Option("--loop", help="Send all of them again and again until Ctrl-C.")] = False,
    qos: Annotated[int, typer.Option(min=0, max=1, help="1: each is acknowledged; 0: sent and forgotten.")] = 1,
    bare: Annotated[
        bool, typer.Option("--bare", help="Send the files as they are, as simple cameras do, without id and sequence.")
    ] = False,
    broker: o.Broker = "",
) -> None:
    """Publish pictures as a camera. All are checked (format, size) before the first one is sent.

    \b
    Examples:
      halimede publish pictures/ --camera cam0
      halimede publish a.jpg b.png --camera cam0 --fps 5 --repeat 10
      halimede publish pictures/ --camera cam0 --loop --bare --qos 0
    """
    if loop and repeat > 1:
        raise typer.BadParameter("--loop and --repeat exclude one another")

    async def command() -> None:
        from halimede.cli import publish as room

        rounds = 0 if loop else repeat
        plan = room.Plan(paths, camera, o.namespace_of(namespace), fps, rounds, qos, bare)
        await room.publish(o.address(broker), plan)

    run(command)
