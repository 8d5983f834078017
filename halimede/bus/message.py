"""Messages of the bus: packets for adapters, deliveries for handlers, and the counts of a connection.

A packet's body is bytes here: what they mean is the affair of ``port.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from halimede.topic import Address

M = TypeVar("M")

#: user properties of one message, and bytes in the name or value of one: a message with more is refused, not trimmed,
#: for what is left out might be what it is ordered or traced by
MAX_PROPERTIES, MAX_PROPERTY = 64, 8 * 1024


def _nothing() -> None:
    """Do nothing: a QoS 0 message has no acknowledgement."""


@dataclass(slots=True)  # not frozen: that would double the time that making one takes
class Packet:
    """One message as an adapter moves it, never changed. ``duplicate`` is only ever set on receipt.

    ``done`` tells the broker that it was handled, where that is the receiver's to say (``later``). ``tail`` is what
    follows the payload and is sent along uncopied; what has arrived has none. A large payload that has arrived may be
    a view of the buffer that it came in.
    """

    topic: str
    payload: bytes | memoryview
    qos: int = 1
    retain: bool = False
    response_topic: str = ""
    correlation: bytes = b""
    expiry_s: int | None = None
    properties: tuple[tuple[str, str], ...] = ()
    duplicate: bool = False
    done: Callable[[], None] = field(default=_nothing, compare=False, repr=False)
    tail: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is published when a connection is up, and what the broker publishes when it breaks."""

    birth: Packet | None = None
    will: Packet | None = None


@dataclass(frozen=True, slots=True)
class Grants:
    """The limits that the broker announced in its CONNACK; the defaults are those of MQTT v5.

    ``receive_maximum``: QoS 1 publishes that it takes unanswered. ``max_packet``: bytes; 0 for no limit.
    """

    receive_maximum: int = 65_535
    max_packet: int = 0
    max_qos: int = 2
    retain: bool = True
    wildcards: bool = True
    shared: bool = True


#: called anew for each connection, so that birth and will carry that connection's epoch
Announce = Callable[[], Announcement]


@dataclass(slots=True)  # as a packet
class Delivery(Generic[M]):
    """A received message: its body, the names in its topic, and its MQTT v5 properties."""

    address: Address[M]
    names: Mapping[str, str]
    body: M
    packet: Packet

    @property
    def properties(self) -> dict[str, str]:
        """User properties; of a repeated name the last one."""
        return dict(self.packet.properties)

    def done(self) -> None:
        """Acknowledge a message of a subscription with ``later``; once is enough, and more do no harm."""
        self.packet.done()


Handler = Callable[[Delivery[M]], Awaitable[None]]
#: gets the names in the topic of a retained message that was cleared
Cleared = Callable[[Mapping[str, str]], Awaitable[None]]
#: gets the names in the topic of a message; whether it is worth reading
Wanted = Callable[[Mapping[str, str]], Awaitable[bool]]
Receive = Callable[[Packet], Awaitable[None]]
#: the same, of who needs no time for it
HandlerNow = Callable[[Delivery[M]], None]
ReceiveNow = Callable[[Packet], None]


@dataclass(slots=True)
class BusStats:
    """Counts since the start. ``rejected``: unreadable; ``dropped``: QoS 0 messages that found a full queue."""

    connects: int = 0
    rejected: int = 0
    dropped: int = 0
    failed_handlers: int = 0
