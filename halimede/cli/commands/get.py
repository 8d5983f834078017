"""``halimede get``, ``nodes`` and ``version``: what there is, and what GM says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import halimede
from halimede.api import Kind
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.output import Format, console, dump, fail, listing, plain, warn
from halimede.cli.views import tables
from halimede.messages import ResourceBody


async def get(broker: BrokerAddress, kind: Kind, name: str, namespace: str, form: Format) -> None:
    """Show one resource, or all of a kind; an empty namespace means all of them."""
    async with Client.to(broker) as client:
        bodies, cut = await fetch(client, kind, name, namespace)
    show(kind, bodies, form, single=bool(name), all_namespaces=not namespace)
    if cut:
        warn("there are more: the list was cut at the size limit of an answer; ask for one namespace")
    if not bodies and form in {Format.TABLE, Format.WIDE}:
        where = f" in namespace {namespace}" if namespace else ""
        warn(f"no {kind.plural}{where}")


async def fetch(client: Client, kind: Kind, name: str, namespace: str) -> tuple[list[ResourceBody], bool]:
    """Return what was asked for, sorted by namespace and name, and whether the list was cut."""
    if name:
        return [await client.get(kind.plural, name, namespace)], False
    bodies, cut = await client.list(kind.plural, namespace)
    return sorted(bodies, key=key), cut


def key(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name."""
    return str(tables.dig(body, "metadata", "namespace")), str(tables.dig(body, "metadata", "name"))


def show(kind: Kind, bodies: Sequence[Mapping[str, Any]], form: Format, *, single: bool, all_namespaces: bool) -> None:
    """Print resources in the form that was asked for."""
    if form in {Format.JSON, Format.YAML}:
        dump(bodies[0] if single else listing(bodies), form)
    elif form is Format.NAME:
        for body in bodies:
            print(f"{str(body.get('kind') or kind.kind).lower()}/{key(body)[1]}")
    elif bodies:
        wide = form is Format.WIDE
        console().print(tables.resources(kind.plural, bodies, wide=wide, all_namespaces=all_namespaces))


async def nodes(broker: BrokerAddress, form: Format) -> None:
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


async def version(find: BrokerAddress) -> int:
    """Show our version and GM's. Returns the exit code."""
    print(f"client  {halimede.__version__}")
    try:
        async with Client.to(find, patience_s=1.0) as client:
            said = await client.version()
    except UnreachableError as error:
        fail(str(error))
        return 1
    shown = said.get("version", said) if isinstance(said, Mapping) else said
    print(f"gm      {shown}")
    return 0
