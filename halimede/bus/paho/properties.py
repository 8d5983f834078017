"""What MQTT v5 carries beside a body, in paho's form."""

from __future__ import annotations

from typing import Any

from paho.mqtt.properties import Properties

from halimede.bus.message import Grants, Packet

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
