"""Reads and writes the MQTT v5 properties of paho's messages; those that arrive it reads in place of paho.

Anybody who may publish chooses it, and paho's reader takes quadratic time over it (half a minute of a core for 10^5
user properties, which fit into one small packet) and ends the connection at U+FEFF, which brokers let through: a
retained message could keep a client off the broker for ever.
"""

from __future__ import annotations

from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties

from halimede.bus.message import Grants, Packet
from halimede.bus.mqtt5.decoder import NO_PROPERTIES, properties, varint

#: what the broker's CONNACK names, by the field that holds it here
GRANTS = {
    "receive_maximum": "ReceiveMaximum",
    "max_packet": "MaximumPacketSize",
    "max_qos": "MaximumQoS",
    "retain": "RetainAvailable",
    "wildcards": "WildcardSubscriptionAvailable",
    "shared": "SharedSubscriptionAvailable",
}
SWITCHES = frozenset({"retain", "wildcards", "shared"})


def v5_properties(packet: Packet, kind: int) -> Properties | None:
    """Write what v5 carries beside a body; None when there is nothing, which spares paho the packing."""
    given = {
        "ResponseTopic": packet.response_topic or None,
        "CorrelationData": packet.correlation or None,
        "MessageExpiryInterval": packet.expiry_s,
        "UserProperty": list(packet.properties) or None,
    }
    present = {name: value for name, value in given.items() if value is not None}
    if not present:
        return None
    properties = no_properties(kind)
    for name, value in present.items():
        setattr(properties, name, value)
    return properties


def grants(properties: Any) -> Grants:
    """Read what the broker said in its CONNACK; what it did not say has the protocol's default."""
    said = {field: getattr(properties, name) for field, name in GRANTS.items() if hasattr(properties, name)}
    return Grants(**{field: bool(value) if field in SWITCHES else value for field, value in said.items()})


def no_properties(kind: int) -> Properties:
    """Return an empty set for a kind of packet (``PacketTypes``)."""
    return Properties(kind)  # type: ignore[no-untyped-call]


class ReadingClient(Client):
    """paho's client, except that ``beside`` and ``payload`` are read here: those of the message of ``on_message``.

    It also sends large packets without copying what is left of them at each step.
    """

    beside = NO_PROPERTIES
    payload = b""

    def _packet_queue(self, command: int, packet: Any, mid: int, qos: int, info: Any = None) -> MQTTErrorCode:
        # paho sends ``packet[done:]`` as often as the socket takes a part: of a view that is no copy
        return super()._packet_queue(command, memoryview(packet), mid, qos, info)  # type: ignore[arg-type]  # it only slices

    def _handle_publish(self) -> MQTTErrorCode:
        # paho gives no other way in; should it ever call this no more, its own reader works as before
        packet: Any = self._in_packet["packet"]
        start = _start(packet, qos=self._in_packet["command"] >> 1 & 3)
        length, first = varint(packet, start)
        body = first + length
        self.beside = properties(bytes(packet[first:body])) if length else NO_PROPERTIES
        with memoryview(packet) as view:
            self.payload = bytes(view[body:])
        packet[start:] = b"\0"  # nothing is left for paho, which would copy it three times
        return super()._handle_publish()


def _start(packet: Any, *, qos: int) -> int:
    """Return where the length of the properties stands: behind topic and packet identifier."""
    return 2 + int.from_bytes(packet[:2]) + (2 if qos else 0)
