"""The services that have workers, of whichever kind: commands that take a service's name ask here for all of them."""

from __future__ import annotations

from halimede.api import kind_of
from halimede.api.placement import SERVICES
from halimede.cli.client import Client
from halimede.messages import ResourceBody

#: their kinds in short, as tasks and commands name them, by plural
SHORT = {plural: kind_of(plural).short_names[0] for plural in SERVICES}


async def by_kind(client: Client, namespace: str = "") -> tuple[dict[str, list[ResourceBody]], bool]:
    """Return the services (of a namespace) by their kind in short, and whether a list was cut."""
    found, more = {}, False
    for plural, short in SHORT.items():
        found[short], cut = await client.list(plural, namespace)
        more = more or cut
    return found, more


async def every(client: Client, namespace: str = "") -> list[ResourceBody]:
    """Return the services (of a namespace), of all kinds."""
    found, _ = await by_kind(client, namespace)
    return [body for bodies in found.values() for body in bodies]
