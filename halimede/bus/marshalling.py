"""Between packets and handlers: what arrives is checked, read and handed over.

A message that cannot be read, or whose handler fails, is counted and refused (``dead_letter``), and acknowledged like
any other: to have it sent again would help nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import structlog

from halimede import codec
from halimede.bus.message import (
    MAX_PROPERTIES,
    MAX_PROPERTY,
    BusStats,
    Cleared,
    Delivery,
    Handler,
    HandlerNow,
    Packet,
    Receive,
    ReceiveNow,
    Wanted,
)
from halimede.errors import DecodeError, InvalidFieldError
from halimede.topic import Address, Topic

M = TypeVar("M")
log = structlog.get_logger()

#: topics whose names are remembered for one subscription, and characters up to which one is
REMEMBERED, LONGEST = 4096, 512


class AddressCache(dict[str, tuple[Address[M], Mapping[str, str]]], Generic[M]):
    """Address and names of the topics that one subscription gets: the same few come again and again, and are read once.

    Looking one up raises DecodeError if a name in it is not valid.
    """

    def __init__(self, topic: Topic[M]) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, text: str) -> tuple[Address[M], Mapping[str, str]]:
        names = self._topic.parse(text)
        if names is None:
            raise DecodeError("a name in the topic is not valid")
        known = Address(self._topic, text), MappingProxyType(names)
        if len(self) >= REMEMBERED:
            self.clear()
        if len(text) <= LONGEST:
            self[text] = known
        return known


def receiver(
    topic: Topic[M],
    handler: Handler[M],
    stats: BusStats,
    dead_letter: Callable[[Packet, str], Awaitable[None]],
    *,
    cleared: Cleared | None = None,
    wanted: Wanted | None = None,
) -> Receive:
    """Return what reads the messages of a topic for a handler: see ``Bus.subscribe``."""
    addresses = AddressCache(topic)

    async def receive(packet: Packet) -> None:
        try:
            address, names = addresses[packet.topic]
            if packet.properties:
                check_properties(packet)
            if topic.retain and not packet.payload:
                if cleared:
                    await cleared(names)
            elif not wanted or await wanted(names):
                body = codec.decode(topic, packet.payload)
                await handler(Delivery(address, names, body, packet))
                return  # where the handler acknowledges later, it will
        except (DecodeError, InvalidFieldError) as error:
            stats.rejected += 1
            await dead_letter(packet, str(error))
        except Exception as error:
            stats.failed_handlers += 1
            log.exception("handler failed", topic=packet.topic)
            await dead_letter(packet, f"the receiver failed: {type(error).__name__}")
        packet.done()

    return receive


def receiver_now(
    topic: Topic[M], handler: HandlerNow[M], stats: BusStats, dead_letter: Callable[[Packet, str], None]
) -> ReceiveNow:
    """Return the same for a handler that needs no time: see ``Bus.subscribe_now``."""
    addresses = AddressCache(topic)

    def receive(packet: Packet) -> None:
        try:
            address, names = addresses[packet.topic]
            if packet.properties:
                check_properties(packet)
            handler(Delivery(address, names, codec.decode(topic, packet.payload), packet))
        except (DecodeError, InvalidFieldError) as error:
            stats.rejected += 1
            dead_letter(packet, str(error))
        except Exception as error:
            stats.failed_handlers += 1
            log.exception("handler failed", topic=packet.topic)
            dead_letter(packet, f"the receiver failed: {type(error).__name__}")

    return receive


def check_properties(packet: Packet) -> None:
    """Raise DecodeError if a message has more beside its body than anybody needs."""
    if len(packet.properties) > MAX_PROPERTIES:
        raise DecodeError(f"more than {MAX_PROPERTIES} user properties")
    for name, value in packet.properties:
        if len(name.encode()) > MAX_PROPERTY or len(value.encode()) > MAX_PROPERTY:
            raise DecodeError(f"a user property of more than {MAX_PROPERTY} bytes")
