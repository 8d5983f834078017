"""Waits until a resource is ready, or a worker reads a camera, at most for a time; the error names what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from halimede.api import kind_of
from halimede.api.placement import cameras_of
from halimede.cli.client import ApiRefusedError, Client, UnreachableError
from halimede.errors import HalimedeError
from halimede.health_checks.resource_fields import dig, phase
from halimede.health_checks.resources import FINE, examine_kind
from halimede.names import Key

#: seconds between two checks for a subscriber to a camera's frames
READER_POLL_S = 0.5
#: phases of a resource that is ready
READY = FINE - {"Terminating"}


class NotReadyError(HalimedeError):
    """The system was not ready in time. The message has the condition of the resource that is not, and what to do."""


async def wait_ready(client: Client, key: Key, generation: int, timeout_s: float) -> None:
    """Wait until a resource is ready in this generation of its spec, or a later one.

    Raises NotReadyError after ``timeout_s``, or if the resource does not exist any more.
    """
    current: Mapping[str, Any] = {}

    def is_ready(body: Mapping[str, Any] | None) -> bool:
        nonlocal current
        current = body or {}
        observed = dig(current, "status", "observedGeneration") or 0
        return not current or (observed >= generation and phase(current) in READY)

    try:
        await client.wait_until(is_ready, key.plural, key.name, key.namespace, timeout_s=timeout_s)
    except TimeoutError:
        raise NotReadyError(f"not ready in time: {_obstacle(key.plural, current)}") from None
    if not current:
        raise NotReadyError(f"{key} was deleted")


async def wait_for_reader(
    client: Client, namespace: str, camera: str, send: Callable[[], Awaitable[bool]], timeout_s: float
) -> None:
    """Repeat ``send``, which publishes a camera's first frame, until it returns True: a subscriber received the frame.

    Raises NotReadyError after ``timeout_s``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await send():  # noqa: ASYNC110 (only a send shows a subscriber)
                await asyncio.sleep(READER_POLL_S)
    except TimeoutError:
        why = await _without_reader(client, namespace, camera)
        raise NotReadyError(f"no edge worker reads camera {camera} after {timeout_s:g} s: {why}") from None


def _obstacle(kind_name: str, body: Mapping[str, Any]) -> str:
    """Return the condition of a resource that is not ready, and what to do about it.

    ``kind_name``: the plural or a short name of its kind.
    """
    kind = kind_of(kind_name).short_names[0]
    checks = examine_kind(kind, [body])
    if not checks:
        return f"{kind}/{dig(body, 'metadata', 'name')}: its new generation has not been observed yet"
    return f"{checks[0].about}: {checks[0].what}. What to do: {checks[0].do}"


async def _without_reader(client: Client, namespace: str, camera: str) -> str:
    """Return why no worker reads a camera: the condition of a service that names it and does not run.

    If all such services run, or there is none, it returns that; if GM does not answer, the error.
    """
    try:
        services, _ = await client.services_by_kind(namespace)
    except (UnreachableError, ApiRefusedError) as error:
        return str(error)
    readers = [(kind, body) for kind, bodies in services.items() for body in bodies if camera in cameras_of(body)]
    for kind, body in readers:
        if phase(body) not in READY:
            return _obstacle(kind, body)
    if readers:
        return f"{', '.join(str(dig(body, 'metadata', 'name')) for _, body in readers)} run: see `halimede logs`"
    return f"no service in namespace {namespace} has it in edgeWorker.source.cameras: see `halimede get cameras`"
