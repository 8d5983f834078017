"""The MQTT v5 properties of a packet as paho encodes them, to compare our encoder and decoder with."""

from __future__ import annotations

from paho.mqtt.properties import Properties

from halimede.bus.message import Packet
from halimede.bus.paho.connection import no_properties


def v5_properties(packet: Packet, kind: int) -> Properties | None:
    """Return the v5 properties of a packet; None if there are none, so that paho need not encode them."""
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
