"""The message bus: the port (interface) ``Bus`` that all code uses, and its adapters: memory for tests, MQTT v5."""

from halimede.bus.message import Announce, Announcement, BusStats, Delivery, Packet
from halimede.bus.port import Bus

__all__ = ["Announce", "Announcement", "Bus", "BusStats", "Delivery", "Packet"]
