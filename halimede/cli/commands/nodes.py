"""``halimede nodes``: the nodes that GM knows."""

from __future__ import annotations

from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.options import Format
from halimede.cli.output import console, dump, plain, warn
from halimede.cli.runner import run
from halimede.cli.views import tables


def nodes(output: o.OutputOption = Format.TABLE, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Show the nodes.

    \b
    Examples:
      halimede nodes
      halimede nodes -o json
    """
    run(lambda: show_nodes(o.address(broker, credentials), output))


async def show_nodes(broker: BrokerAddress, form: Format) -> None:
    """Show the nodes."""
    async with Client.to(broker) as client:
        found = sorted(await client.nodes(), key=lambda node: node.name)
    if form in {Format.JSON, Format.YAML}:
        dump(plain(found), form)
    elif form is Format.NAME:
        for node in found:
            print(f"node/{node.name}")
    elif found:
        console().print(tables.nodes(found))
    else:
        warn("no nodes: no local controller has connected to this broker yet")
