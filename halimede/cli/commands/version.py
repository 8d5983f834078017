"""``halimede version``: prints the version of this command and that of GM."""

from __future__ import annotations

from collections.abc import Mapping

import halimede
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.output import fail
from halimede.cli.runner import run


def version(broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Show the version of this command and of the global manager.

    \b
    Examples:
      halimede version
      halimede version --broker 10.0.0.7:1883
    """
    run(lambda: show_version(o.address(broker, credentials)))


async def show_version(broker: BrokerAddress) -> int:
    """Print the version of this command and that of GM. Returns the exit code: 1 if GM does not answer."""
    print(f"client  {halimede.__version__}")
    try:
        async with Client.to(broker, patience_s=1.0) as client:
            reply = await client.version()
    except UnreachableError as error:
        fail(str(error))
        return 1
    shown = reply.get("version", reply) if isinstance(reply, Mapping) else reply
    print(f"gm      {shown}")
    return 0
