"""One GM on a broker: a second one with another store would fight over nodes that follow only one of them.

The file lock keeps two from one store. This looks at what the broker remembers of a GM before our own birth replaces
it. While the broker is away there is nothing to see, and nobody to fight with.
"""

from __future__ import annotations

import asyncio
import contextlib

from halimede.bus import Bus, Delivery
from halimede.errors import DisconnectedError, HalimedeError
from halimede.messages import GmPresence
from halimede.topics import GM_PRESENCE

#: seconds: for the broker to be there, and for the retained message to follow the subscription
CONNECT_S, LOOK_S = 2.0, 0.3


async def refuse_a_second(bus: Bus, identity: str) -> None:
    """Raise HalimedeError when a GM of another store is online. ``bus`` is one of our own, not entered yet."""
    seen: list[GmPresence] = []
    found = asyncio.Event()

    async def look(delivery: Delivery[GmPresence]) -> None:
        seen.append(delivery.body)
        found.set()

    async with bus:
        with contextlib.suppress(DisconnectedError, TimeoutError):
            await bus.wait_connected(CONNECT_S)
            await bus.subscribe(GM_PRESENCE.filter(), look)
            async with asyncio.timeout(LOOK_S):
                await found.wait()  # there is one such message at most
    for other in seen:
        if other.online and other.store and other.store != identity:
            raise HalimedeError(
                f"another global manager (store {other.store}) is online on this broker: stop it, or give this one a"
                " broker or a topic prefix of its own, such as --broker mqtt://host:1883/site1"
            )
