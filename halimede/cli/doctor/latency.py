"""Measures the broker's round trip with frames of a camera that does not exist, and reads the broker's version.

An operator may publish and receive camera frames, so that this works under every access rule. The frames are received
at QoS 0: a broker without ``set_tcp_nodelay`` then delays its acknowledgement by 40 ms, until the system acknowledges
the frame (Nagle's algorithm). This delay shows that the option is missing.
"""

from __future__ import annotations

import asyncio
import secrets
from statistics import median

from halimede import topics
from halimede.bus.message import Packet
from halimede.bus.port import Bus
from halimede.errors import BusError

#: seconds to wait for the broker's version, and the topic on which most brokers retain it
VERSION_S = 0.5
VERSION = "$SYS/broker/version"


async def round_trips(bus: Bus, count: int, body: bytes = b"halimede doctor", *, timeout_s: float = 5.0) -> list[float]:
    """Publish ``count`` frames to this client, one after another; return the milliseconds until each acknowledgement.

    ``timeout_s`` is for each frame. Raises RefusedError without an operator's rights, and DisconnectedError.
    """
    address = topics.CAMERA_FRAME.at(ns="default", camera=f"doctor-{secrets.token_hex(8)}")
    loop, times = asyncio.get_running_loop(), []
    await bus.listen(address.text, 0, _ignore, count + 1)
    try:
        for _ in range(count):
            began = loop.time()
            await bus.publish(address, body, timeout_s=timeout_s)
            times.append((loop.time() - began) * 1000)
    finally:
        await bus.unlisten(address.text)
    return times


async def round_trip_ms(bus: Bus) -> float | None:
    """Return the median milliseconds of a few round trips; None if they fail."""
    try:
        return round(median(await round_trips(bus, 5)), 2)
    except BusError:
        return None


async def broker_version(bus: Bus) -> str:
    """Return the broker's name and version; empty if this client does not receive them within ``VERSION_S``."""
    version: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def take(packet: Packet) -> None:
        if not version.done():
            version.set_result(bytes(packet.payload).decode("utf-8", "replace")[:100])

    try:
        await bus.listen(VERSION, 0, take, 1)
        async with asyncio.timeout(VERSION_S):
            return await version
    except (BusError, TimeoutError):
        return ""
    finally:
        await bus.unlisten(VERSION)


async def _ignore(_: Packet) -> None: ...
