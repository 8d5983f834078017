"""The command that asks where somebody was seen, as a shell sees it."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import options as o
from halimede.cli.runner import run


def add_to(app: typer.Typer) -> None:
    """Register this command."""
    app.command()(seen)


def seen(
    service: o.ServiceArgument,
    identity: Annotated[
        str, typer.Argument(metavar="[IDENTITY]", help="Whose sightings; none: everybody's.", show_default=False)
    ] = "",
    picture: Annotated[
        str,
        typer.Option(metavar="FILE", help="Who looks like this: a JPEG or PNG of one object.", show_default=False),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="MANIFEST",
            help="With --picture: the manifest of the Model that the service's edge workers use, its file beside it.",
            show_default=False,
        ),
    ] = "",
    camera: Annotated[str, typer.Option(metavar="NAME", help="By this camera alone.", show_default=False)] = "",
    since: o.Since = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Up to then, written as for --since.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many sightings, or identities.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show who is seen from now on, until Ctrl-C.")] = False,
    namespace: o.Namespace = "default",
    output: o.LinesOption = o.LinesFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show where somebody was seen, in a service that re-identifies. Times are those of the cameras' clocks.

    \b
    Examples:
      halimede seen lobby
      halimede seen lobby 8f2b1c7d90e4a35f --since 1h
      halimede seen lobby --camera yard --since 10m -o json
      halimede seen lobby --picture who.jpg --model embedder.yaml
      halimede seen lobby -f
    """
    if bool(picture) != bool(model):
        raise typer.BadParameter("--picture and --model go together: features mean something to their model alone")
    if picture and identity:
        raise typer.BadParameter("give an IDENTITY or a --picture")
    if follow and (picture or since or until):
        raise typer.BadParameter("-f shows what comes: it goes with IDENTITY and --camera alone")

    async def command() -> None:
        from halimede.cli.output import Format
        from halimede.cli.time_args import since as time
        from halimede.cli.views import hard_samples as room
        from halimede.messages import IdentityQuery
        from halimede.names import check_label, check_name

        check_name("SERVICE", service)
        if camera:
            check_label("--camera", camera)
        where, form = room.ServiceQuery(o.namespace_of(namespace), service), Format(output)
        if follow:
            await room.follow_tracks(o.address(broker, credentials), where, identity, camera, form)
            return
        first, last = time(since), time(until, field="--until")
        query = IdentityQuery(
            identity=identity,
            embedding=room.features(picture, model) if picture else b"",
            camera=camera,
            since=first.timestamp() if first else 0.0,
            until=last.timestamp() if last else 0.0,
            limit=limit,
        )
        await room.seen(o.address(broker, credentials), where, query, form)

    run(command)
