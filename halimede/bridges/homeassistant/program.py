"""The program ``halimede bridge homeassistant``: checks both brokers, connects, and runs the bridge until a signal."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from halimede import log
from halimede.bridges.homeassistant.bridge import HomeAssistantBridge
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bridges.homeassistant.publisher import availability_will
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import CONNECT_S, Client, check_reachable
from halimede.errors import HalimedeError, RefusedError
from halimede.system.runtime import stop_on_signal

#: what to do if Home Assistant's broker refuses a topic
REFUSED_FIX = (
    "let this user read and write {prefix}/# there; on a site of `halimede certs` the consumer `homeassistant` may, "
    "with the prefix homeassistant"
)


def target_address(broker: BrokerAddress, to: str, to_credentials: str) -> BrokerAddress:
    """Return the address of Home Assistant's broker; both options may be empty. Raises InvalidFieldError."""
    own = Credentials.at(to_credentials, "--to-credentials") if to_credentials else None
    if to:
        return BrokerAddress(MqttSettings.from_url(to, variable="--to", credentials=own), "--to")
    if own is None:
        return broker
    settings = broker.settings
    own.check(secure=settings.secure)
    return BrokerAddress(replace(settings, credentials=own), broker.source)


async def run_bridge(
    broker: BrokerAddress, *, prefix: str, name: str, to: str = "", to_credentials: str = "", control: bool = False
) -> None:
    """Run the bridge until SIGTERM or SIGINT. The parameters are the options of the command.

    Raises HalimedeError if an option is not valid, a broker cannot be reached or refuses the bridge, or another bridge
    has this name.
    """
    log.configure("INFO")
    target = target_address(broker, to, to_credentials)
    topics = DiscoveryTopics.from_options(prefix, name, target.settings.prefix)
    stop = stop_on_signal()
    await check_reachable(broker)
    await check_reachable(target)
    identity = f"homeassistant-{name}-{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        target_bus = MqttBus(identity, target.settings.for_control(), lambda: availability_will(topics))
        system_bus = MqttBus(f"{identity}-reader", broker.settings.for_control())
        client = Client.to(broker, patience_s=0.0) if control else None
        for connection in (target_bus, system_bus, client):
            if connection:
                await stack.enter_async_context(connection)
        await target_bus.wait_connected(CONNECT_S)
        await system_bus.wait_connected(CONNECT_S)
        bridge = HomeAssistantBridge(system_bus, target_bus, topics, client)
        try:
            await _until(stop, bridge.run())
        except RefusedError as error:
            fix = REFUSED_FIX.format(prefix=prefix)
            raise HalimedeError(f"{error} at the broker of Home Assistant, {target}. What to do: {fix}") from error


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run work until it ends, or until ``stop`` is set. Raises the errors of the work."""
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.wait({task})
