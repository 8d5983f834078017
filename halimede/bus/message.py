"""Messages of the bus: packets for adapters, deliveries for handlers, and the counts of a connection.

A packet's body is bytes here; ``port.py`` decodes it. The reason codes are those of MQTT v5 (2.4): their names, and
which of them refuse a publish or a subscription.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from halimede.errors import RefusedError
from halimede.topic import Address

M = TypeVar("M")
#: most user properties of one message, and most bytes in the name or value of one: a message with more is refused, not
#: trimmed, because the rest might be needed for its order or its trace
MAX_PROPERTIES, MAX_PROPERTY = 64, 8 * 1024
#: reason codes: success, success without a subscriber, and the least one of a failure
SUCCESS, NO_SUBSCRIBER, FAILURE = 0x00, 0x10, 0x80
#: reason codes of a broker that does not offer shared subscriptions, or filters with wildcards
NO_SHARED, NO_WILDCARDS = 0x9E, 0xA2
#: reason codes of a DISCONNECT: of a client whose will is to be published, and of a broker whose client has a rival
DISCONNECT_WITH_WILL, SESSION_TAKEN_OVER = 0x04, 0x8E
#: reason codes of refused clients: client id not valid, bad user name or password, not authorised, banned, bad
#: authentication method
BARRED = frozenset({0x85, 0x86, 0x87, 0x8A, 0x8C})

#: names of the standard: reasons of a refused or ended connection
NAMES = {
    0x00: "Normal disconnection",
    0x80: "Unspecified error",
    0x81: "Malformed packet",
    0x82: "Protocol error",
    0x83: "Implementation specific error",
    0x84: "Unsupported protocol version",
    0x85: "Client identifier not valid",
    0x86: "Bad user name or password",
    0x87: "Not authorized",
    0x88: "Server unavailable",
    0x89: "Server busy",
    0x8A: "Banned",
    0x8B: "Server shutting down",
    0x8C: "Bad authentication method",
    0x8D: "Keep alive timeout",
    0x8E: "Session taken over",
    0x8F: "Topic filter invalid",
    0x90: "Topic name invalid",
    0x93: "Receive maximum exceeded",
    0x94: "Topic alias invalid",
    0x95: "Packet too large",
    0x96: "Message rate too high",
    0x97: "Quota exceeded",
    0x98: "Administrative action",
    0x99: "Payload format invalid",
    0x9A: "Retain not supported",
    0x9B: "QoS not supported",
    0x9C: "Use another server",
    0x9D: "Server moved",
    0x9E: "Shared subscriptions not supported",
    0x9F: "Connection rate exceeded",
    0xA0: "Maximum connect time",
    0xA1: "Subscription identifiers not supported",
    0xA2: "Wildcard subscriptions not supported",
}
#: texts for users: reasons of a refused publish or subscription
REASONS = {code: NAMES[code].lower() for code in (0x80, 0x83, 0x90, 0x97, 0x99)} | {
    0x87: "not authorised",
    0x91: "packet identifier in use",
    NO_SHARED: "the broker does not offer shared subscriptions",
    NO_WILDCARDS: "the broker does not offer wildcard subscriptions",
}


def _nothing() -> None:
    """Do nothing: the ``done`` of a packet that its handler need not acknowledge."""


@dataclass(slots=True)  # not frozen: that would double the time to make one
class Packet:
    """One message between an adapter and the bus. Only ``arrived`` is changed after it was made.

    Attributes:
        topic: without a prefix of the broker.
        payload: the encoded body; that of a large received message may be a view of its receive buffer.
        qos: 0 or 1.
        retain: in a sent message: the broker keeps it; in a received one: the broker has kept it.
        response_topic, correlation: where an answer goes, and what identifies it; empty: no answer.
        expiry_s: seconds after which the broker drops it; None: never.
        properties: user properties as pairs of name and value; a name may be repeated.
        duplicate: only on receipt: the broker has sent it before.
        done: acknowledges a message of a subscription with ``later`` (``Bus.subscribe``), because the return of its
            handler does not. Further calls, and calls for other messages, have no effect.
        tail: follows the payload and is sent without a copy; received messages have none.
        arrived: the loop time at which a message of a subscription with ``later`` arrived; 0 for others.

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
    done: Callable[[], None] = _nothing
    tail: bytes | memoryview = b""
    arrived: float = 0.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """The birth message after connecting, and the will that the broker publishes when the connection breaks.

    ``repeat`` returns the birth as it is some seconds later. A broker that is still starting may acknowledge a retained
    message and not keep it, so the birth is published once more. None: no birth, no will, no repetition.
    """

    birth: Packet | None = None
    will: Packet | None = None
    repeat: Callable[[], Packet] | None = None


@dataclass(frozen=True, slots=True)
class Grants:
    """The limits that the broker announced in its CONNACK; the defaults are those of MQTT v5.

    ``receive_maximum``: most unacknowledged QoS 1 publishes. ``max_packet``: bytes; 0 for no limit. ``max_qos``: of
    publishes. ``retain``, ``wildcards``, ``shared``: whether it offers retained messages, filters with wildcards, and
    shared subscriptions.
    """

    receive_maximum: int = 65_535
    max_packet: int = 0
    max_qos: int = 2
    retain: bool = True
    wildcards: bool = True
    shared: bool = True


#: called before each attempt to connect, so that birth and will have the state of that moment
Announce = Callable[[], Announcement]


@dataclass(slots=True)  # not frozen, as a packet
class Delivery(Generic[M]):
    """A received message: its address and body, and its packet.

    ``names``: the name of each field in its topic, such as ``ns`` (``Topic.parse``).
    """

    address: Address[M]
    names: Mapping[str, str]
    body: M
    packet: Packet

    @property
    def properties(self) -> dict[str, str]:
        """The user properties by name; of a repeated name the last value."""
        return dict(self.packet.properties)


#: called with each decoded message of a subscription; an error refuses the message as a dead letter
Handler = Callable[[Delivery[M]], Awaitable[None]]
#: called with the names in the topic of a retained message that was cleared
Cleared = Callable[[Mapping[str, str]], Awaitable[None]]
#: called with the names in the topic of a message; returns whether to decode it
AcceptsNames = Callable[[Mapping[str, str]], Awaitable[bool]]
#: called with each packet of a subscription, before its body is decoded
Receive = Callable[[Packet], Awaitable[None]]
#: a ``Handler`` and a ``Receive`` that are plain functions
HandlerNow = Callable[[Delivery[M]], None]
ReceiveNow = Callable[[Packet], None]


@dataclass(slots=True)
class BusStats:
    """Counts of one client since its start, and the end of the broker's certificate.

    Attributes:
        connects: accepted connections.
        rejected: messages that could not be read, or that their handler refused with DecodeError or InvalidFieldError.
        dropped: messages that no handler got: their queue was full, or their subscription had ended.
        failed_handlers: other errors of handlers.
        certificate_end: Unix time at which the broker's certificate ends, as of the last connection; None without TLS.

    """

    connects: int = 0
    rejected: int = 0
    dropped: int = 0
    failed_handlers: int = 0
    certificate_end: float | None = None


def check_reason(topic: str, reason: int) -> int:
    """Return the broker's reason code for a publish to ``topic``. Raises RefusedError if it is a failure."""
    if reason >= FAILURE:
        raise RefusedError(topic, reason, REASONS.get(reason, "refused"))
    return reason


def name(code: int, reason_string: str = "") -> str:
    """Return the standard's name of a reason code, with the text that the broker sent with it."""
    text = NAMES.get(code, f"reason {code:#04x}")
    return f"{text} ({reason_string})" if reason_string else text
