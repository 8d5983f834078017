"""``halimede apply`` and ``halimede delete``: what a manifest asks for, in the order in which it can be had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from halimede.api import kind_of
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.manifests import Manifest, load
from halimede.cli.output import console, fail, warn
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import ResourceBody
from halimede.names import Key

CHANGED = frozenset({"created", "configured"})


def named(key: Key) -> str:
    """Return how a resource is named to people, as in ``-o name``."""
    return f"{kind_of(key.plural).kind.lower()}/{key.name}"


async def apply(broker: BrokerAddress, paths: Sequence[str], namespace: str) -> int:
    """Apply manifests; one that GM refuses does not stop the others. Returns the exit code."""
    manifests = load(paths, namespace)
    failed = 0
    async with Client.to(broker) as client:
        for manifest in manifests:
            failed += not await _apply(client, manifest)
    return 1 if failed else 0


async def delete(
    broker: BrokerAddress, keys: Iterable[Key], *, wait: bool, timeout_s: float, ignore_missing: bool
) -> int:
    """Delete resources, those that refer to others first, and wait until they are gone. Returns the exit code."""
    failed = 0
    out = console()
    going: list[tuple[Key, str]] = []
    async with Client.to(broker) as client:
        for key in keys:
            try:
                uid = _uid(await client.get(key.plural, key.name, key.namespace))
                await client.delete(key.plural, key.name, key.namespace)
            except ApiRefusedError as error:
                if error.reason == "NotFound" and ignore_missing:
                    continue
                failed += 1
                fail(str(error))
                continue
            going.append((key, uid))
            if not wait:
                out.print(f"{named(key)} is being deleted")
        for key, uid in going if wait else ():
            await _gone(client, key, uid, timeout_s)
            out.print(f"{named(key)} deleted")
    return 1 if failed else 0


async def delete_node(broker: BrokerAddress, name: str, *, ignore_missing: bool) -> int:
    """Have GM forget a node that will not come back. Returns the exit code."""
    async with Client.to(broker) as client:
        try:
            await client.delete_node(name)
        except ApiRefusedError as error:
            if error.reason == "NotFound" and ignore_missing:
                return 0
            fail(str(error))
            return 1
    console().print(f"node/{name} deleted")
    return 0


def keys(paths: Sequence[str], namespace: str) -> list[Key]:
    """Return what manifests name, in the order in which it can be deleted."""
    return [manifest.resource.key for manifest in reversed(load(paths, namespace))]


async def _apply(client: Client, manifest: Manifest) -> bool:
    resource = manifest.resource
    name = named(resource.key)
    try:
        outcome, _ = await client.apply(resource.body)
    except (ApiRefusedError, InvalidFieldError) as error:
        fail(f"{manifest.source}: {name}: {error}")
        return False
    console().print(f"{name} {outcome}", style="green" if outcome in CHANGED else "")
    if manifest.missing:
        warn(f"{manifest.source}: {manifest.missing} is not on this machine: it must be there on the nodes that use it")
    return True


async def _gone(client: Client, key: Key, uid: str, timeout_s: float) -> None:
    try:
        await client.wait_until(
            lambda body: body is None or _uid(body) != uid, key.plural, key.name, key.namespace, timeout_s=timeout_s
        )
    except TimeoutError as error:
        raise HalimedeError(
            f"{key} is still being deleted after {timeout_s:g} s: "
            "a node that is away keeps it; see `halimede describe` and `halimede nodes`"
        ) from error


def _uid(body: ResourceBody) -> str:
    return str(body.get("metadata", {}).get("uid", ""))
