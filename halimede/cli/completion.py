"""What the shell offers after Tab: kinds, and the names that the running system has.

Typer calls these functions with the ``incomplete`` word; each returns all words that begin with it. If no system
answers within a short time, they return nothing and print nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from halimede.cli.client import Client

#: what `get` lists in addition to kinds
LISTS = ("nodes", "cameras", "events")
#: words for nodes in place of a kind
NODE_WORDS = frozenset({"nodes", "node", "no"})
#: seconds for the system to answer
DEADLINE_S = 1.0

#: returns names, by requests of a connected client
Ask = Callable[["Client"], Coroutine[Any, Any, list[str]]]


def kinds(incomplete: str) -> list[str]:
    """Offer kinds, by plural and short name, and what else ``get`` lists."""
    from halimede import api

    return _matches([*LISTS, *(name for k in api.kinds() for name in (k.plural, k.short_names[0]))], incomplete)


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of resources of the kind that the command line has before."""
    kind = str(ctx.params.get("kind") or "")
    if kind in NODE_WORDS:
        return nodes(ctx, incomplete)

    async def ask(client: Client) -> list[str]:
        from halimede.api import kind_of

        return await _names(client, kind_of(kind).plural, _namespace(ctx))

    return _matches(_request(ctx, ask), incomplete) if kind else []


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of nodes."""

    async def ask(client: Client) -> list[str]:
        return [node.name for node in await client.nodes()]

    return _matches(_request(ctx, ask), incomplete)


def services(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of services of the namespace."""

    async def ask(client: Client) -> list[str]:
        return [str(body["metadata"]["name"]) for body in await client.services(_namespace(ctx))]

    return _matches(_request(ctx, ask), incomplete)


def cameras(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of cameras that services of the namespace read."""

    async def ask(client: Client) -> list[str]:
        from halimede.api.placement import cameras_of

        return [camera for body in await client.services(_namespace(ctx)) for camera in cameras_of(body)]

    return _matches(_request(ctx, ask), incomplete)


def events(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer what an event may be about: ``node/NAME`` and ``KIND/NAME``."""
    from halimede.api import plurals

    async def ask(client: Client) -> list[str]:
        objects = [f"node/{node.name}" for node in await client.nodes()]
        for kind in plurals():
            objects += [f"{kind.short_names[0]}/{name}" for name in await _names(client, kind.plural, _namespace(ctx))]
        return objects

    return _matches(_request(ctx, ask), incomplete)


async def _names(client: Client, plural: str, namespace: str) -> list[str]:
    bodies, _ = await client.list(plural, namespace)
    return [str(body["metadata"]["name"]) for body in bodies]


def _namespace(ctx: typer.Context) -> str:
    return str(ctx.params.get("namespace") or "default")


def _request(ctx: typer.Context, ask: Ask) -> list[str]:
    """Return what ``ask`` returns; nothing if it fails or takes longer than ``DEADLINE_S``."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123 - a device
        try:
            return asyncio.run(_send_request(ctx, ask))
        except Exception:  # noqa: BLE001 - a shell that is being typed into is no place for errors
            return []


async def _send_request(ctx: typer.Context, ask: Ask) -> list[str]:
    """Return what ``ask`` returns with a client of the command line's broker. Raises any error, and TimeoutError."""
    from halimede import log
    from halimede.cli.broker_address import find
    from halimede.cli.client import Client

    log.configure("CRITICAL")
    params = {**(ctx.parent.params if ctx.parent else {}), **{k: v for k, v in ctx.params.items() if v}}
    broker = find(str(params.get("broker") or ""), credentials=str(params.get("credentials") or ""))
    async with asyncio.timeout(DEADLINE_S), Client.to(broker, patience_s=0.0) as client:
        return await ask(client)


def _matches(candidates: list[str], incomplete: str) -> list[str]:
    return sorted({candidate for candidate in candidates if candidate.startswith(incomplete)})
