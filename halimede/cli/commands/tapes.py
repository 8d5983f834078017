"""Recording cameras and playing them back, as a shell sees it: record, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import options as o
from halimede.cli.runner import run

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of the recording.")]


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (record, replay):
        app.command()(command)


def record(
    folder: Folder,
    camera: o.Camera,
    namespace: o.Namespace = "default",
    seconds: Annotated[float | None, typer.Option(min=0.1, help="End after so long.", show_default=False)] = None,
    frames: Annotated[int, typer.Option(min=1, help="End after so many frames.")] = 100_000,
    max_bytes: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="End before the frames take more than that.")
    ] = 1_000_000_000,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Write a camera's frames into a new folder, with the times at which they came. Edge workers get them all the same.

    \b
    Examples:
      halimede record recordings/monday --camera cam0 --seconds 60
      halimede record recordings/few --camera cam0 --frames 100 --max-bytes 50000000
    """

    async def command() -> None:
        from halimede.cli.commands import record as room

        limits = room.RecordLimits(seconds or 0.0, frames, max_bytes)
        await room.record(o.address(broker, credentials), folder, camera, o.namespace_of(namespace), limits)

    run(command)


def replay(
    folder: Folder,
    camera: o.Camera,
    namespace: o.Namespace = "default",
    speed: Annotated[float, typer.Option(min=0.01, max=1000, help="So many times as fast as it was.")] = 1.0,
    fps: Annotated[
        float | None,
        typer.Option(min=0.01, help="Frames a second, whatever they were. Plain pictures: 25.", show_default=False),
    ] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Again and again until Ctrl-C.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Begin as soon as somebody takes the camera's frames.")] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Publish a recording as the camera did, or a plain folder of pictures in the order of their names.

    \b
    Examples:
      halimede replay recordings/monday --camera cam0
      halimede replay recordings/monday --camera cam1 --speed 4 --wait
      halimede replay examples/digits/pictures --camera cam0 --fps 10 --loop
    """
    if fps and speed != 1.0:
        raise typer.BadParameter("--fps and --speed exclude one another")

    async def command() -> int:
        from halimede.cli.commands import replay as room

        plan = room.ReplayPlan(folder, camera, o.namespace_of(namespace), speed, fps or 0.0, loop=loop, wait=wait)
        return await room.replay(o.address(broker, credentials), plan)

    run(command)
