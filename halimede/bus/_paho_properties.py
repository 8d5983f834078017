"""What MQTT v5 carries beside a body, in paho's form."""

from __future__ import annotations

from paho.mqtt.properties import Properties

from halimede.bus.port import Packet


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


def no_properties(kind: int) -> Properties:
    """Return an empty set for a kind of packet (``PacketTypes``)."""
    return Properties(kind)  # type: ignore[no-untyped-call]
