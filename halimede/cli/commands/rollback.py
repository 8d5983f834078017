"""``halimede rollback``: returns a Model or InferenceModel to an earlier version, which its status remembers.

The command edits the spec to that of an earlier version; everything else follows as after any edit.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from halimede.api import Kind, plurals
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands.apply import reference
from halimede.cli.output import console, fail, warn
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError, hide_secrets
from halimede.messages import ResourceBody, ServedVersion, Status
from halimede.names import Key

#: least characters of a digest that may name a version
LEAST = 4


def rollback(
    kind: o.KindArgument,
    name: o.NameArgument = "",
    to: Annotated[
        str, typer.Option("--to", metavar="VERSION", help="The version: its name, or the beginning of its digest.")
    ] = "",
    namespace: o.Namespace = "default",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Return to an earlier version of a Model or InferenceModel: the previous one, or the named one.

    \b
    Examples:
      halimede rollback model/digits-small
      halimede rollback model/digits-small --to 3f2a9c01b7de
      halimede rollback inferencemodel helmet --to 3 -n factory
    """

    async def command() -> int:
        target = o.named_target(kind, name)
        return await roll_back(o.address(broker, credentials), *target, o.namespace_of(namespace), to)

    run(command)


async def roll_back(broker: BrokerAddress, kind: Kind, name: str, namespace: str, to: str) -> int:
    """Change a resource to the version ``to``, or to the previous one (empty). Returns the exit code: 1 if GM refuses.

    On Kubernetes GM refuses, and this prints the command that does so. Raises InvalidFieldError and HalimedeError.
    """
    if not kind.versioned:
        versioned = " and ".join(other.plural for other in plurals() if other.versioned)
        raise InvalidFieldError("KIND", kind.plural, f"only {versioned} have versions")
    key = Key(kind.plural, namespace, name)
    async with Client.to(broker) as client:
        body = await client.get(key.plural, name, namespace)
        version = choose(body, to)
        change = patch(body, version)
        try:
            await client.apply({**body, "spec": {**body["spec"], **change}})
        except ApiRefusedError as error:
            if error.reason != "NotAllowed":
                fail(f"{reference(key)}: {error}")
                return 1
            warn("this system runs on Kubernetes, where kubectl changes resources: run")
            print(kubectl(body, key, change))
            return 1
    console().print(f"{reference(key)} goes back to version {version.version}", style="green")
    return 0


def choose(body: ResourceBody, to: str) -> ServedVersion:
    """Return the version of the name or digest ``to``; without it, the latest one that is not the present one.

    Raises InvalidFieldError for an unknown version, and HalimedeError if there is no earlier one.
    """
    versions = _status(body).versions
    listed = ", ".join(version.version for version in versions) or "none"
    if to:
        matching = [version for version in versions if version.version == to]
        matching = matching or [version for version in versions if len(to) >= LEAST and version.digest.startswith(to)]
        if len(matching) != 1:
            raise InvalidFieldError("--to", to, f"use one of the versions that were served: {listed}")
        return matching[0]
    for version in versions:
        if not _is_present(body, version):
            return version
    raise HalimedeError(f"there is no earlier version to return to (served: {listed})")


def patch(body: ResourceBody, version: ServedVersion) -> dict[str, Any]:
    """Return the fields of the spec that make a version the present one.

    Raises HalimedeError if too little is known about the version.
    """
    spec: Mapping[str, Any] = body["spec"]
    listed = spec.get("versions") or spec.get("manifest") or []
    if version.version in _names(listed):
        return {"targetVersion": version.version}
    if "manifest" in spec:
        raise HalimedeError(f"version {version.version} is no longer in spec.manifest: add it and apply that")
    url = spec.get("url", "")
    if hide_secrets(url) != version.url:  # the status hides secrets, so an equal address is that of the spec
        url = version.url
        if "***" in url:
            raise HalimedeError(f"version {version.version}: its address has a secret ({url}): apply its manifest")
    change: dict[str, Any] = {"url": url, "sha256": version.digest}
    return change | ({"targetVersion": ""} if spec.get("targetVersion") else {})


def kubectl(body: ResourceBody, key: Key, change: Mapping[str, Any]) -> str:
    """Return the command that changes fields of a resource's spec on Kubernetes."""
    group = str(body.get("apiVersion", "")).partition("/")[0]
    args = ["kubectl", "patch", f"{key.plural}.{group}", key.name, "-n", key.namespace, "--type", "merge", "-p"]
    return shlex.join([*args, json.dumps({"spec": change})])


def _is_present(body: ResourceBody, version: ServedVersion) -> bool:
    """Whether a version is the one in the spec now.

    By name: ``targetVersion``, else the last listed version if the spec has no url. Otherwise by digest, else by url.
    """
    spec, status = body["spec"], _status(body)
    listed = spec.get("versions") or spec.get("manifest") or []
    names = _names(listed)
    target_version = spec.get("targetVersion") or (names[-1] if names and not spec.get("url") else "")
    if target_version:
        return version.version == target_version
    current = status.observed_generation >= int(body.get("metadata", {}).get("generation") or 0)
    digest = spec.get("sha256") or (status.model.digest if status.model and current else "")
    return version.digest == digest if digest else version.url == hide_secrets(spec.get("url", ""))


def _names(versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of versions in a spec."""
    return [str(version.get("version", "")) for version in versions]


def _status(body: ResourceBody) -> Status:
    """Return a resource's status. Raises HalimedeError if it cannot be read."""
    try:
        return msgspec.convert(body.get("status") or {}, Status)
    except msgspec.ValidationError as error:
        raise HalimedeError(f"its status cannot be read: {error}: install a newer halimede") from error
