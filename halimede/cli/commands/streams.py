"""The commands that move or follow data, as a shell sees them: events, logs, results, publish."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.runner import run


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (events, logs, results, publish):
        app.command()(command)


def events(
    about: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Only about this: KIND/NAME or node/NODE.",
            show_default=False,
            autocompletion=completion.events,
        ),
    ] = "",
    type_: Annotated[o.EventType, typer.Option("--type", "-t", help="Only of this type.")] = o.EventType.ALL,
    since: o.Since = "",
    namespace: o.Namespace = "default",
    output: o.OutputOption = o.OutputFormat.TABLE,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="How many of the newest.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those that come, until Ctrl-C.")] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show what happened. With -f, JSON is one document a line, and a GM that is away is waited for.

    \b
    Examples:
      halimede events --since 1h --type Warning
      halimede events --about ji/digits
      halimede events --about node/edge0 -f
      halimede events -f -o json | jq .reason
    """

    async def command() -> None:
        from halimede.cli.commands import events as room
        from halimede.cli.output import Format
        from halimede.cli.time_args import since as time

        what = o.about(about, o.namespace_of(namespace))
        wanted = "" if type_ is o.EventType.ALL else type_.value
        choice = room.EventSelection(what, wanted, time(since), limit)
        await room.events(o.address(broker, credentials), choice, Format(output), follow=follow)

    run(command)


def logs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="A service (all its workers) or one worker.",
            show_default=False,
            autocompletion=completion.services,
        ),
    ] = "",
    namespace: o.Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            metavar="LINES",
            min=-1,
            help="Begin with this many lines; -1: all. Default: 100, with --since all.",
            show_default=False,
        ),
    ] = None,
    since: o.Since = "",
    role: Annotated[o.WorkerRole, typer.Option(help="Only workers of this role.")] = o.WorkerRole.BOTH,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            "-l",
            metavar="NODE",
            help="All workers of this node; with the NAME of a worker that one, whatever GM knows.",
            show_default=False,
            autocompletion=completion.nodes,
        ),
    ] = "",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show what workers wrote, on all nodes at once. Followed workers may restart or move, and logs be rotated.

    \b
    Examples:
      halimede logs digits -f
      halimede logs digits --role cloud --since 10m
      halimede logs -l edge0 -f --tail 5
      halimede logs digits-edge-edge0 --node edge0 --tail -1
    """
    if not name and not node:
        raise typer.BadParameter("say whose: a service, a worker, or a node with -l NODE")

    async def command() -> int:
        from halimede.cli.commands import logs as room
        from halimede.cli.time_args import since as time
        from halimede.names import check_name

        for field, value in (("NAME", name), ("--node", node)):
            if value:
                check_name(field, value)
        only = "" if role is o.WorkerRole.BOTH else role.value
        lines = tail if tail is not None else (-1 if since else 100)
        choice = room.LogSelection(name, o.namespace_of(namespace), node, only, lines, time(since))
        return await room.logs(o.address(broker, credentials), choice, follow=follow)

    run(command)


def results(
    service: o.ServiceArgument,
    namespace: o.Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C (or --limit).")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after so many. Without -f: 10.", show_default=False)
    ] = None,
    output: o.LinesOption = o.LinesFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show final answers as they come. A frame that was answered again after a broken connection is shown once.

    \b
    Examples:
      halimede results -f digits
      halimede results digits --limit 1 -o json
      halimede results -f digits -o json | jq .label
    """

    async def command() -> None:
        from halimede.cli.commands import results as room
        from halimede.cli.output import Format

        most = limit or (0 if follow else 10)
        await room.results(o.address(broker, credentials), service, o.namespace_of(namespace), most, Format(output))

    run(command)


def publish(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="JPEG and PNG files, or folders; or one video file, rtsp://, http:// (MJPEG) or /dev/video0; "
            "@FILE: its address is in that file.",
        ),
    ],
    camera: o.Camera,
    namespace: o.Namespace = "default",
    fps: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Frames a second; 0: as fast as the broker takes them (its queues may then drop some). Of a live "
            "source: at most so many. Default: 25 for pictures, their own speed for all others.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Send all of them N times.")] = 1,
    loop: Annotated[bool, typer.Option("--loop", help="Send all of them again and again until Ctrl-C.")] = False,
    qos: Annotated[int, typer.Option(min=0, max=1, help="1: each is acknowledged; 0: sent and forgotten.")] = 1,
    bare: Annotated[
        bool, typer.Option("--bare", help="Send the files as they are, as simple cameras do, without id and sequence.")
    ] = False,
    max_width: Annotated[
        int, typer.Option(min=0, max=16_384, help="Scale wider frames of a video down; 0: never.", metavar="PIXELS")
    ] = 0,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Publish pictures, a video or a stream as a camera. Pictures are all checked before the first one is sent.

    \b
    Examples:
      halimede publish pictures/ --camera cam0
      halimede publish a.jpg b.png --camera cam0 --fps 5 --repeat 10
      halimede publish pictures/ --camera cam0 --loop --bare --qos 0
      halimede publish street.mp4 --camera cam0 --loop
      halimede publish rtsp://10.0.0.7/stream1 --camera cam0 --fps 10 --max-width 640
    """
    if loop and repeat > 1:
        raise typer.BadParameter("--loop and --repeat exclude one another")

    async def command() -> None:
        from halimede.cli.commands import publish as room
        from halimede.cli.commands import publish_stream as stream

        rounds, where = 0 if loop else repeat, o.namespace_of(namespace)
        if stream.is_stream(paths):
            order = stream.Order(paths, camera, where, fps, rounds, qos, bare, max_width)
            await stream.publish(o.address(broker, credentials), order)
            return
        pictures = room.PublishPlan(paths, camera, where, room.FPS if fps is None else fps, rounds, qos, bare)
        await room.publish(o.address(broker, credentials), pictures)

    run(command)
