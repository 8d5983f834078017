"""The commands that make a site's certificates and access rules, as a shell sees them. They talk to no broker."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halimede.cli import options as o
from halimede.cli.runner import run

if TYPE_CHECKING:
    from halimede.cli.commands.certs_site import Names


class AclTarget(StrEnum):
    """Brokers whose form of access rules can be written."""

    MOSQUITTO = "mosquitto"
    EMQX = "emqx"


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.", show_default=False)]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME", help="A node: its LC and its workers; repeatable.", show_default=False),
]
Cameras = Annotated[
    list[str] | None, typer.Option("--camera", metavar="NAME", help="A camera; repeatable.", show_default=False)
]
Operators = Annotated[
    list[str] | None,
    typer.Option(
        "--operator", metavar="NAME", help="Somebody who uses the command `halimede`; repeatable.", show_default=False
    ),
]
Consumers = Annotated[
    list[str] | None,
    typer.Option("--consumer", metavar="NAME", help="A program that reads results; repeatable.", show_default=False),
]
Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker", metavar="HOST", help="Host name or address of the broker; repeatable.", show_default=False
    ),
]
Days = Annotated[int, typer.Option(min=1, max=3650, metavar="N", help="How long new certificates hold.")]
Prefix = Annotated[
    str,
    typer.Option(metavar="LEVELS", help="Levels before every topic, where systems share a broker.", show_default=False),
]

certs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Certificates and access rules of a site with a broker of its own.",
)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.add_typer(certs, name="certs")


@certs.command()
def init(
    folder: Folder,
    node: Nodes = None,
    camera: Cameras = None,
    operator: Operators = None,
    consumer: Consumers = None,
    broker: Brokers = None,
    prefix: Prefix = "",
    install: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Where FOLDER/broker will be on the broker's machine. Default: where it is made.",
            show_default=False,
        ),
    ] = "",
    pools: Annotated[
        bool, typer.Option("--pools", help="Users for worker pods, which may be on any node (Kubernetes).")
    ] = False,
    passwords: Annotated[bool, typer.Option("--passwords", help="Passwords in place of certificates.")] = False,
    days: Days = 365,
) -> None:
    """Make a site: authority, certificates for the broker and all its users, access rules.

    Who there is stands in FOLDER/site.yaml: edit it and run `certs init FOLDER` again. What is there and serves is
    kept; who is no longer in it loses all rights.

    \b
    Examples:
      halimede certs init --node edge0 --node cloud0 --camera cam0 --broker broker.example.com site/
      halimede certs init --node edge0 --broker 10.0.0.7 --install /etc/mosquitto/halimede site/
      halimede certs init --node edge0 --node cloud0 --pools --passwords site/
      halimede certs init site/
    """  # fmt: skip

    async def command() -> None:
        from halimede.cli.commands import certs_site as room

        options: dict[str, str | bool] = {"prefix": prefix, "install": install, "pools": pools, "passwords": passwords}
        room.init(folder, _given(node, camera, operator, consumer, broker), options, days=days)

    run(command)


@certs.command()
def add(
    folder: Folder,
    node: Nodes = None,
    camera: Cameras = None,
    operator: Operators = None,
    consumer: Consumers = None,
    broker: Brokers = None,
    days: Days = 365,
) -> None:
    """Add users to a site. Nobody else's certificate changes; --broker is another name of the broker.

    \b
    Examples:
      halimede certs add --node edge7 site/
      halimede certs add --camera cam1 --camera cam2 --consumer dashboard site/
    """

    async def command() -> None:
        from halimede.cli.commands import certs_site as room

        room.add(folder, _given(node, camera, operator, consumer, broker), days=days)

    run(command)


@certs.command()
def remove(
    folder: Folder,
    node: Nodes = None,
    camera: Cameras = None,
    operator: Operators = None,
    consumer: Consumers = None,
    broker: Brokers = None,
) -> None:
    """Take users out of a site. Their rights end when the broker has the new access rules.

    \b
    Examples:
      halimede certs remove --node edge7 site/
      halimede certs remove --operator alice site/
    """

    async def command() -> None:
        from halimede.cli.commands import certs_site as room

        room.remove(folder, _given(node, camera, operator, consumer, broker))

    run(command)


@certs.command()
def rotate(
    folder: Folder,
    authority: Annotated[
        bool, typer.Option("--ca", help="Begin with a new authority; the old one counts too.")
    ] = False,
    finish: Annotated[bool, typer.Option("--finish", help="From now on the new authority alone counts.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="USER", help="Only this one, as `certs show` names it; repeatable.", show_default=False),
    ] = None,
    days: Days = 365,
) -> None:
    """Make new certificates in place of those that are there.

    A new authority takes three steps: `--ca`, then all certificates anew, then `--finish`; after each, copy the files
    to where they are used.

    \b
    Examples:
      halimede certs rotate site/
      halimede certs rotate --only lc.edge0 --only broker site/
      halimede certs rotate --ca site/
      halimede certs rotate --finish site/
    """
    if authority + finish + bool(only) > 1:
        raise typer.BadParameter("--ca, --finish and --only exclude one another")

    async def command() -> None:
        from halimede.cli.commands import certs_site as room

        if authority or finish:
            return room.rotate_authority(folder, finish=finish)
        return room.rotate(folder, only or [], days=days)

    run(command)


@certs.command()
def show(folder: Folder, output: o.LinesOption = o.LinesFormat.TABLE) -> None:
    """Show who there is and when whose certificate expires. Exit code 1: one is missing or does not serve.

    \b
    Examples:
      halimede certs show site/
      halimede certs show site/ -o json | jq 'select(.days < 30)'
    """

    async def command() -> int:
        from halimede.cli.commands import certs_site as room
        from halimede.cli.output import Format

        return room.show(folder, Format(output))

    run(command)


@certs.command()
def acl(
    folder: Folder,
    target: Annotated[AclTarget, typer.Option("--for", help="The broker.")] = AclTarget.MOSQUITTO,
    prefix: Prefix = "",
) -> None:
    """Print the access rules of a site as a broker reads them.

    \b
    Examples:
      halimede certs acl site/
      halimede certs acl --for emqx --prefix factory/east site/
    """

    async def command() -> None:
        from halimede.cli.commands import certs_site as room

        room.acl(folder, target.value, prefix)

    run(command)


@certs.command()
def secrets(
    folder: Folder,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Where GM, LCs and the broker are.")] = "halimede",
    workers_in: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A namespace with services; repeatable. Default: default.", show_default=False
        ),
    ] = None,
    target: Annotated[AclTarget, typer.Option("--for", help="The broker.")] = AclTarget.MOSQUITTO,
) -> None:
    """Print the credentials of a site as Kubernetes Secrets: whoever sees them can be anyone on the broker.

    \b
    Examples:
      halimede certs secrets site/ | kubectl apply --server-side -f -
      halimede certs secrets --workers-in default --workers-in vision site/ | kubectl apply --server-side -f -
      halimede certs secrets --for emqx site/ | kubectl apply --server-side -f -
    """

    async def command() -> None:
        from halimede.cli.commands import certs_site as room

        room.secrets(folder, namespace, workers_in or ["default"], target.value)

    run(command)


def _given(
    node: list[str] | None,
    camera: list[str] | None,
    operator: list[str] | None,
    consumer: list[str] | None,
    broker: list[str] | None,
) -> Names:
    given = {"nodes": node, "cameras": camera, "operators": operator, "consumers": consumer, "broker": broker}
    return {field: names for field, names in given.items() if names}
