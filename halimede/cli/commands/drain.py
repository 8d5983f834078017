"""``halimede drain`` and ``halimede uncordon``: empties a node for maintenance, and allows its use again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.output import fail, warn
from halimede.cli.runner import run
from halimede.names import check_name

#: seconds between two requests to GM
POLL_S = 0.3


def drain(
    node: o.NodeArgument,
    wait: Annotated[bool, typer.Option(help="Wait until the node has no workers.")] = True,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait.")] = 120.0,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Drain a node for maintenance. Its workers answer what they accepted; it stays empty until `uncordon`.

    \b
    Examples:
      halimede drain edge0
      halimede drain edge0 --timeout 600
      halimede drain edge0 --no-wait
    """
    run(lambda: drain_node(o.address(broker, credentials), check_name("NODE", node), wait=wait, timeout_s=timeout))


async def drain_node(broker: BrokerAddress, node: str, *, wait: bool, timeout_s: float) -> int:
    """Drain a node and, with ``wait``, wait until it has no worker.

    Returns the exit code: 1 if the node is not empty after ``timeout_s`` or offline with workers; 0 without ``wait``.
    """
    async with Client.to(broker) as client:
        answer = await client.drain(node)
        print(f"node {node} is drained: nothing is placed on it until `halimede uncordon {node}`", flush=True)
        for role in answer["stranded"]:
            warn(stranded_text(node, role))
        if not wait:
            return 0
        return await _wait_empty(client, node, timeout_s)


def stranded_text(node: str, role: Mapping[str, Any]) -> str:
    """Return the message that a worker of a service has no other node, with what to do.

    ``role`` has the fields ``service`` (``<namespace>/<name>``) and ``role``.
    """
    namespace, _, name = str(role["service"]).partition("/")
    return (
        f"service {name} in namespace {namespace}: its {role['role']} worker can run only on {node}, and waits: "
        f"set another nodeName or nodeSelector, or run `halimede uncordon {node}`"
    )


def _count_text(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


async def _wait_empty(client: Client, node: str, timeout_s: float) -> int:
    """Wait until a node has neither services nor workers, or is unknown; print the progress. Returns the exit code.

    1 after ``timeout_s``, and at once for a node that is offline.
    """
    loop = asyncio.get_running_loop()
    give_up, shown = loop.time() + timeout_s, ""
    with Console(stderr=True).status("") as status:
        while True:
            nodes = await client.nodes(node)
            if not nodes or not (nodes[0].resources or nodes[0].workers):
                break
            workers = f"{_count_text(nodes[0].workers, 'worker')} of {_count_text(nodes[0].resources, 'service')}"
            if not nodes[0].online:
                trouble = f": {nodes[0].trouble}" if nodes[0].trouble else " is offline"
                fail(f"node {node}{trouble}; its last report: {workers}; they end when it is online again")
                return 1
            if loop.time() >= give_up:
                fail(
                    f"node {node} still has {workers} after {timeout_s:g} s; they are stopping: run the command again "
                    f"to wait longer; `halimede logs -l {node}` shows their logs"
                )
                return 1
            if workers != shown:
                status.update(f"waiting for {workers} on node {node} to stop")
                if not sys.stderr.isatty():
                    print(f"left on node {node}: {workers}", flush=True)
            shown = workers
            await asyncio.sleep(POLL_S)
    print(f"node {node} is empty")
    return 0


def uncordon(node: o.NodeArgument, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Make a drained node schedulable again. Its workers start again.

    \b
    Examples:
      halimede uncordon edge0
      halimede uncordon edge0 --broker 10.0.0.7:1883
    """
    run(lambda: uncordon_node(o.address(broker, credentials), check_name("NODE", node)))


async def uncordon_node(broker: BrokerAddress, node: str) -> None:
    """Let GM use a drained node again."""
    async with Client.to(broker) as client:
        await client.uncordon(node)
    print(f"node {node} is uncordoned: its workers start again")
