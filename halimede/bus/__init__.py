"""The message bus: a port that everybody speaks to, and its adapters (memory for tests, MQTT v5 for real)."""

from halimede.bus.message import Announce, Announcement, BusStats, Delivery, Packet
from halimede.bus.port import Bus

__all__ = ["Announce", "Announcement", "Bus", "BusStats", "Delivery", "Packet"]
