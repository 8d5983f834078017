"""``halimede apply``: creates or changes the resources of manifests, in the order of their references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from halimede.api import admit, kind_of
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.manifests import Manifest, load
from halimede.cli.output import console, fail, warn
from halimede.cli.runner import run
from halimede.errors import InvalidFieldError
from halimede.names import Key

CHANGED = frozenset({"created", "configured"})


def apply(
    files: o.Files = None,
    more: o.MoreFiles = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="For resources that have none.", show_default=False)
    ] = "",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Create or update the resources in manifests.

    All manifests are checked before anything is sent, and all their errors are shown. Models and Datasets go first. A
    relative url in a Model or Dataset is relative to its manifest.

    \b
    Examples:
      halimede apply -f examples/digits/
      halimede apply -f model.yaml -f service.yaml -n factory
      cat service.yaml | halimede apply -f -
    """
    if not files:
        raise typer.BadParameter("give -f FILE, -f FOLDER or -f - for standard input")
    paths = [*files, *(more or [])]

    async def command() -> int:
        checked = o.namespace_of(namespace) if namespace else ""
        return await apply_manifests(o.address(broker, credentials), paths, checked)

    run(command)


def named(key: Key) -> str:
    """Return the name of a resource for output, as in ``-o name``."""
    return f"{kind_of(key.plural).kind.lower()}/{key.name}"


async def apply_manifests(broker: BrokerAddress, paths: Sequence[str], namespace: str) -> int:
    """Apply manifests; one that GM refuses does not stop the others. Returns the exit code."""
    manifests = load(paths, namespace, admit)
    failed = 0
    async with Client.to(broker) as client:
        for manifest in manifests:
            failed += not await _apply_one(client, manifest)
    return 1 if failed else 0


async def _apply_one(client: Client, manifest: Manifest) -> bool:
    resource = manifest.resource
    name = named(resource.key)
    try:
        outcome, _ = await client.apply(resource.body)
    except (ApiRefusedError, InvalidFieldError) as error:
        fail(f"{manifest.source}: {name}: {error}")
        return False
    console().print(f"{name} {outcome}", style="green" if outcome in CHANGED else "")
    if manifest.missing:
        warn(f"{manifest.source}: {manifest.missing} is not on this machine: it must exist on the nodes that use it")
    return True
