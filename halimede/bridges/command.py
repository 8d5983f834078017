"""``halimede bridge``: programs that connect a halimede system with another system, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import options as o
from halimede.cli.runner import run

#: the group of the commands ``halimede bridge NAME``
bridge = o.group("Connect a system with another one over MQTT, such as Home Assistant, until Ctrl-C.")


@bridge.callback()
def _group() -> None:
    """Connect a system with another one over MQTT, such as Home Assistant, until Ctrl-C."""


@bridge.command()
def homeassistant(
    prefix: Annotated[
        str, typer.Option(metavar="TOPIC", help="The discovery prefix in Home Assistant's MQTT options.")
    ] = "homeassistant",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of this system, if Home Assistant shows several systems.")
    ] = "halimede",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="HOST:PORT",
            help="The broker of Home Assistant. Default: that of the system.",
            show_default=False,
        ),
    ] = "",
    to_credentials: Annotated[
        str,
        typer.Option(
            "--to-credentials",
            metavar="DIR",
            help="The folder with the credentials for Home Assistant's broker. Default: those of --credentials, "
            "or none with --to.",
            show_default=False,
        ),
    ] = "",
    control: Annotated[
        bool,
        typer.Option(
            "--control", help="Let Home Assistant set upload budgets and drain nodes. Needs an operator's credentials."
        ),
    ] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show services, nodes and cameras in Home Assistant, by MQTT device discovery.

    \b
    Examples:
      halimede bridge homeassistant
      halimede bridge homeassistant --to mqtt://homeassistant.local:1883 --to-credentials ha
      halimede bridge homeassistant --control --to-credentials site/consumers/homeassistant
    """

    async def command() -> None:
        from halimede.bridges.homeassistant.program import run_bridge  # here, because help texts need no bus

        await run_bridge(
            o.address(broker, credentials), prefix=prefix, name=name, to=to, to_credentials=to_credentials,
            control=control,
        )  # fmt: skip

    run(command)
