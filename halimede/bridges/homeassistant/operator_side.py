"""What the bridge does with an operator's rights: it reads nodes and budgets from GM, and carries out commands.

On Kubernetes GM leaves changes to kubectl. There the bridge only reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.bridges.homeassistant.devices import DeviceKey, all_devices, node_key, service_key
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bridges.homeassistant.system_listener import Touch
from halimede.bridges.homeassistant.system_view import SystemView
from halimede.bus.message import Packet
from halimede.bus.port import Bus
from halimede.cli.client import ApiRefusedError, Client, NotLetInError, UnreachableError
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import ResourceBody
from halimede.names import Key

log = structlog.get_logger()

#: seconds between two requests to GM
POLL_S = 5.0
#: most commands that wait
MAX_COMMANDS = 16
#: payloads of a switch
SWITCH = {b"ON": True, b"OFF": False}
#: most bytes of a command
MAX_PAYLOAD = 64


@dataclass(frozen=True, slots=True)
class DrainCommand:
    """Drain a node, or make it schedulable again (``drain`` is False)."""

    node: str
    drain: bool


@dataclass(frozen=True, slots=True)
class BudgetCommand:
    """Set the share of uploads (0..1) of a service."""

    service: Key
    share: float


Command = DrainCommand | BudgetCommand


def read_command(view: SystemView, topics: DiscoveryTopics, topic: str, payload: bytes) -> Command:
    """Return the command of a message from Home Assistant. Raises InvalidFieldError."""
    target = topics.command_target(topic)
    key = next((key for key in all_devices(view) if target and key.id == target[0]), None)
    entity = target[1] if target else ""
    text = payload[:MAX_PAYLOAD].decode(errors="replace")
    if key and key.kind == "node" and entity == "drained":
        if payload not in SWITCH:
            raise InvalidFieldError(topic, text, "send ON or OFF")
        return DrainCommand(key.name, SWITCH[payload])
    if key and key.kind == "service" and entity == "budget":
        try:
            percent = float(text)
        except ValueError:
            percent = math.nan
        if not 0 <= percent <= 100:
            raise InvalidFieldError(topic, text, "send a percentage from 0 to 100")
        return BudgetCommand(Key(key.plural, key.namespace, key.name), percent / 100)
    raise InvalidFieldError(topic, text, "the bridge has no such switch or number")


def budget_of(body: ResourceBody) -> tuple[bool, float | None]:
    """Return whether a service can have a budget, and its share (0..1); None: it has none."""
    worker: dict[str, Any] = body.get("spec", {}).get("edgeWorker", {})
    share = worker.get("targetUploadRatio")
    return not worker.get("costs"), None if share is None else float(share)


def with_budget(body: ResourceBody, share: float) -> ResourceBody:
    """Return a service with another share of uploads."""
    spec = body["spec"]
    return {**body, "spec": {**spec, "edgeWorker": {**spec["edgeWorker"], "targetUploadRatio": round(share, 6)}}}


class OperatorSide:
    """Reads nodes and budgets into the view, and carries out commands: ``start``, then ``run`` until cancelled.

    ``target_bus``: the connection to Home Assistant's broker. ``client``: a connection with an operator's rights.
    ``touch`` is called with each device that has changed, ``failed`` with the text of a command's error.
    """

    def __init__(
        self,
        target_bus: Bus,
        client: Client,
        topics: DiscoveryTopics,
        view: SystemView,
        *,
        touch: Touch,
        failed: Callable[[str], None],
    ) -> None:
        self._target_bus = target_bus
        self._client = client
        self._topics = topics
        self._view = view
        self._touch = touch
        self._failed = failed
        self._due = asyncio.Event()

    async def start(self) -> None:
        """Check the operator's rights, and subscribe to commands. Raises HalimedeError if one is refused."""
        await self._check()
        await self._target_bus.listen(self._topics.commands, 1, self._on_command, MAX_COMMANDS, drop_oldest=True)

    async def run(self) -> None:
        """Read nodes and budgets every few seconds, until cancelled. Raises HalimedeError if GM refuses the rights."""
        while True:
            await self._check()
            try:
                await self._read()
            except HalimedeError as error:  # GM is away, which its presence shows
                log.debug("nodes not read", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._due.wait()
            self._due.clear()

    async def _check(self) -> None:
        """Check the operator's rights, until GM has answered once. Raises HalimedeError if it refuses them."""
        view = self._view
        if view.has_control:
            return
        try:
            await self._client.events(limit=1)
        except NotLetInError:
            raise
        except UnreachableError as error:
            log.info("no control yet", error=str(error))
            return
        except ApiRefusedError as error:
            if error.reason != "NotAllowed":
                raise
            view.on_kubernetes = True
            log.info("changes are left to kubectl: the bridge shows budgets and drained nodes, and sets none")
        view.has_control = True
        for key in all_devices(view):
            self._touch(key)

    async def _read(self) -> None:
        """Read all nodes, and the budgets of services whose spec has changed. Raises HalimedeError."""
        view = self._view
        infos = {info.name: info for info in await self._client.nodes()}
        for name in infos.keys() | view.infos.keys():
            if infos.get(name) != view.infos.get(name):
                self._touch(node_key(name))
        view.infos = infos
        for key, document in list(view.services.entries.items()):
            read = view.budgets.get(key)
            if key.plural == JOINT_INFERENCE and (read is None or read[0] != document.generation):
                with contextlib.suppress(ApiRefusedError):  # it is deleted, and its status is still there
                    await self._read_budget(key)

    async def _read_budget(self, key: Key) -> None:
        """Read the budget of a service. Raises HalimedeError."""
        body = await self._client.get(key.plural, key.name, key.namespace)
        can_have, share = budget_of(body)
        self._view.budgets[key] = int(body.get("metadata", {}).get("generation") or 0), share
        (self._view.without_budget.discard if can_have else self._view.without_budget.add)(key)
        self._touch(service_key(key))

    async def _on_command(self, packet: Packet) -> None:
        """Carry out a command, or report its error; a retained one is old, and ignored, as are all on Kubernetes."""
        if packet.retain or self._view.on_kubernetes:
            return
        try:
            command = read_command(self._view, self._topics, packet.topic, bytes(packet.payload))
            await self._carry_out(command)
        except HalimedeError as error:
            log.warning("command failed", topic=packet.topic, error=str(error))
            self._failed(str(error))
        self._due.set()

    async def _carry_out(self, command: Command) -> None:
        """Send a command to GM. Raises HalimedeError."""
        if isinstance(command, DrainCommand):
            log.info("command", node=command.node, drain=command.drain)
            await (self._client.drain(command.node) if command.drain else self._client.uncordon(command.node))
            return
        key = command.service
        log.info("command", service=str(key), budget=command.share)
        body = await self._client.get(key.plural, key.name, key.namespace)
        await self._client.apply(with_budget(body, command.share))
        await self._read_budget(key)


__all__ = ["Command", "DeviceKey", "OperatorSide", "budget_of", "read_command", "with_budget"]
