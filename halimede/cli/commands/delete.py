"""``halimede delete``: resources, all that manifests describe, or a node that will not come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands.apply import reference
from halimede.cli.manifests import load
from halimede.cli.options import NODE_KINDS
from halimede.cli.output import console, fail
from halimede.cli.runner import run
from halimede.errors import HalimedeError
from halimede.messages import ResourceBody
from halimede.names import Key, check_name


def delete(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="As for `get`.", show_default=False, autocompletion=completion.kinds)
    ] = "",
    name: o.NameArgument = "",
    files: o.Files = None,
    namespace: o.Namespace = "default",
    wait: Annotated[bool, typer.Option(help="Wait until it is gone and its workers have stopped.")] = True,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait.")] = 60.0,
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="Ignore resources that do not exist.")
    ] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Delete a resource, all resources in manifests, or a node that is gone for good.

    \b
    Examples:
      halimede delete ji digits
      halimede delete -f digits/
      halimede delete model/digits-small --no-wait
      halimede delete node edge7
    """
    if bool(files) == bool(kind):
        raise typer.BadParameter("give KIND NAME or -f FILE")

    async def command() -> int:
        where = o.namespace_of(namespace)
        if files:
            keys = keys_of(files, where)
        elif kind.partition("/")[0] in NODE_KINDS:
            node = check_name("NAME", kind.partition("/")[2] or name)
            return await delete_node(o.address(broker, credentials), node, ignore_missing=ignore_not_found)
        else:
            resource_kind, resource_name = o.named_target(kind, name)
            keys = [Key(resource_kind.plural, where, resource_name)]
        return await delete_resources(
            o.address(broker, credentials), keys, wait=wait, timeout_s=timeout, ignore_missing=ignore_not_found
        )

    run(command)


async def delete_resources(
    broker: BrokerAddress, keys: Iterable[Key], *, wait: bool, timeout_s: float, ignore_missing: bool
) -> int:
    """Delete resources in this order, and return the exit code: 1 if GM refused one.

    ``wait``: wait until all are gone, each for at most ``timeout_s``; raises HalimedeError after that.
    """
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
                out.print(f"{reference(key)} is being deleted")
        for key, uid in going if wait else ():
            await _wait_deleted(client, key, uid, timeout_s)
            out.print(f"{reference(key)} deleted")
    return 1 if failed else 0


async def delete_node(broker: BrokerAddress, name: str, *, ignore_missing: bool) -> int:
    """Let GM forget a node that will not come back. Returns the exit code."""
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


def keys_of(paths: Sequence[str], namespace: str) -> list[Key]:
    """Return the keys of resources in manifests, in the order in which they can be deleted. Raises ManifestError."""
    return [manifest.resource.key for manifest in reversed(load(paths, namespace))]


async def _wait_deleted(client: Client, key: Key, uid: str, timeout_s: float) -> None:
    """Wait until the resource with this uid is gone. Raises HalimedeError after ``timeout_s``."""
    try:
        await client.wait_until(
            lambda body: body is None or _uid(body) != uid, key.plural, key.name, key.namespace, timeout_s=timeout_s
        )
    except TimeoutError as error:
        raise HalimedeError(
            f"{key} is still being deleted after {timeout_s:g} s: "
            "an offline node still holds it; see `halimede describe` and `halimede nodes`"
        ) from error


def _uid(body: ResourceBody) -> str:
    return str(body.get("metadata", {}).get("uid", ""))
