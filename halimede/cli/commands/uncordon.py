"""``halimede uncordon``: lets a drained node be used again."""

from __future__ import annotations

from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.runner import run
from halimede.names import check_name


def uncordon(node: o.NodeArgument, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Let a drained node be used again. Its workers come back.

    \b
    Examples:
      halimede uncordon edge0
      halimede uncordon edge0 --broker 10.0.0.7:1883
    """
    run(lambda: uncordon_node(o.address(broker, credentials), check_name("NODE", node)))


async def uncordon_node(broker: BrokerAddress, node: str) -> None:
    """Let a node be used again."""
    async with Client.to(broker) as client:
        await client.uncordon(node)
    print(f"node {node} is given back: what belongs there comes back by itself")
