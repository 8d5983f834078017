"""Between bodies and packets: what leaves is encoded, what arrives is read and handed over.

A message that cannot be read, or whose handler fails, is counted and refused (``dead_letter``), and acknowledged like
any other: to have it sent again would help nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

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


def packed(
    address: Address[M],
    body: M,
    *,
    qos: int | None = None,
    reply_to: Address[Any] | None,
    correlation: bytes,
    expiry_s: int | None,
    properties: Mapping[str, str] | None,
    tail: memoryview | None = None,
) -> Packet:
    """Return the packet of a body. Its arguments are those of ``Bus.publish`` and ``Bus.publish_now``."""
    topic = address.topic
    if tail is not None and tail.nbytes != len(tail):
        tail = tail.cast("B")  # whatever counts its bytes does so by its length
    return Packet(
        topic=address.text,
        payload=codec.encode(topic, body) if tail is None else codec.encode_before(topic, body, tail),
        qos=topic.qos if qos is None else qos,
        retain=topic.retain,
        response_topic=reply_to.text if reply_to else "",
        correlation=correlation,
        expiry_s=expiry_s,
        properties=tuple(properties.items()) if properties else (),
        tail=b"" if tail is None else tail,
    )


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

    async def receive(packet: Packet) -> None:
        names = topic.parse(packet.topic)
        try:
            if names is None:
                raise DecodeError("a name in the topic is not valid")
            check_properties(packet)
            if topic.retain and not packet.payload:
                if cleared:
                    await cleared(names)
            elif not wanted or await wanted(names):
                body = codec.decode(topic, packet.payload)
                await handler(Delivery(Address(topic, packet.topic), names, body, packet))
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

    def receive(packet: Packet) -> None:
        try:
            names = topic.parse(packet.topic)
            if names is None:
                raise DecodeError("a name in the topic is not valid")
            if packet.properties:
                check_properties(packet)
            handler(Delivery(Address(topic, packet.topic), names, codec.decode(topic, packet.payload), packet))
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
    if any(len(text.encode()) > MAX_PROPERTY for pair in packet.properties for text in pair):
        raise DecodeError(f"a user property of more than {MAX_PROPERTY} bytes")
