"""The operator's commands, as a shell sees them: status, top, doctor, drain, uncordon, rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import options as o
from halimede.cli.runner import run


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (status, top, doctor, drain, uncordon, rollback):
        app.command()(command)


def status(
    output: o.ReportOption = o.ReportFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show on one screen whether all is well, and what to do next. Exit code 0: all is well, 1: something is not.

    \b
    Examples:
      halimede status
      halimede status -o json | jq .todo
      watch -n 5 halimede status
    """

    async def command() -> int:
        from halimede.cli.commands import status as room
        from halimede.cli.output import Format

        return await room.status(o.address(broker, credentials), Format(output))

    run(command)


def top(
    seconds: Annotated[float, typer.Option("--seconds", "-n", min=0.2, max=60, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Measure for one interval, show it, and end.")] = False,
    sort: Annotated[o.Sort, typer.Option("--sort", "-s", help="What the services are sorted by.")] = o.Sort.PHASE,
    output: o.ReportOption = o.ReportFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Watch nodes, services, rates, latencies and cloud workers, until Ctrl-C.

    \b
    Examples:
      halimede top
      halimede top -n 5 --sort rate
      halimede top --once -o json | jq '.services[].framesPerSecond'
    """

    async def command() -> None:
        from halimede.cli.commands import top as room
        from halimede.cli.output import Format

        await room.top(o.address(broker, credentials), seconds, sort.value, Format(output), once=once)

    run(command)


def doctor(
    output: o.ReportOption = o.ReportFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Check everything that can be checked from here, and say what to do. Exit code 1: there is a problem.

    \b
    Examples:
      halimede doctor
      halimede doctor --broker mqtts://broker.example:8883 --credentials site/operators/admin
      halimede doctor -o json | jq '.checks[] | select(.level != "ok")'
    """

    async def command() -> int:
        from halimede.cli.doctor import run as room
        from halimede.cli.output import Format

        return await room.doctor(broker, credentials, Format(output))

    run(command)


def drain(
    node: o.NodeArgument,
    wait: Annotated[bool, typer.Option(help="Wait until no worker is left on it.")] = True,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait.")] = 120.0,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Empty a node for maintenance. Its workers finish what they have; nothing is placed on it until `uncordon`.

    \b
    Examples:
      halimede drain edge0
      halimede drain edge0 --timeout 600
      halimede drain edge0 --no-wait
    """

    async def command() -> int:
        from halimede.cli.commands import drain as room
        from halimede.names import check_name

        name = check_name("NODE", node)
        return await room.drain(o.address(broker, credentials), name, wait=wait, timeout_s=timeout)

    run(command)


def uncordon(node: o.NodeArgument, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Let a drained node be used again. What belongs there comes back by itself.

    \b
    Examples:
      halimede uncordon edge0
      halimede uncordon edge0 --broker 10.0.0.7:1883
    """

    async def command() -> None:
        from halimede.cli.commands import drain as room
        from halimede.names import check_name

        await room.uncordon(o.address(broker, credentials), check_name("NODE", node))

    run(command)


def rollback(
    kind: o.KindArgument,
    name: o.NameArgument = "",
    to: Annotated[
        str, typer.Option("--to", metavar="VERSION", help="Which one: its name, or the beginning of its digest.")
    ] = "",
    namespace: o.Namespace = "default",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Go back to an earlier version of a Model or InferenceModel: the one before, or the one that is named.

    \b
    Examples:
      halimede rollback model/digits-small
      halimede rollback model/digits-small --to 3f2a9c01b7de
      halimede rollback inferencemodel helmet --to 3 -n factory
    """

    async def command() -> int:
        from halimede.cli.commands import rollback as room

        found, called = o.target(kind, name)
        if not called:
            raise typer.BadParameter("say which one: KIND NAME")
        return await room.rollback(o.address(broker, credentials), found, called, o.namespace_of(namespace), to)

    run(command)
