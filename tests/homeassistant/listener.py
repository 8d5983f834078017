"""A client that receives what Home Assistant would: the last retained message of each topic, and all messages."""

from __future__ import annotations

from halimede.bus import Bus, Packet
from tests.homeassistant.schema import Document, read_document


class DiscoveryListener:
    """Subscribes ``bus``, which the caller enters, to documents and states below ``prefix``."""

    #: below the prefix, the topics of all bridges of this program
    states = "halimede/#"

    def __init__(self, bus: Bus, prefix: str = "homeassistant") -> None:
        self.bus = bus
        self.prefix = prefix
        #: the last payload of each topic, if it was not empty; of a late subscriber, what is retained
        self.retained: dict[str, bytes] = {}
        #: all messages in their order: topic and payload
        self.messages: list[tuple[str, bytes]] = []

    async def start(self) -> None:
        for filter_ in ("device/#", "sensor/#", self.states):
            await self.bus.listen(f"{self.prefix}/{filter_}", 1, self._receive, 10_000)

    async def _receive(self, packet: Packet) -> None:
        payload = bytes(packet.payload)
        self.messages.append((packet.topic, payload))
        if payload:
            self.retained[packet.topic] = payload
        else:
            self.retained.pop(packet.topic, None)

    async def birth(self) -> None:
        """Publish what Home Assistant does when it has started."""
        await self.bus.send(Packet(f"{self.prefix}/status", b"online"))

    async def command(self, target: str, payload: bytes, *, retain: bool = False) -> None:
        await self.bus.send(Packet(f"{self.prefix}/halimede/{target}/set", payload, retain=retain))

    @property
    def documents(self) -> dict[str, Document]:
        """The documents by the ids of their devices; each one is checked."""
        topics = (topic for topic in self.retained if topic.endswith("/config"))
        return {topic.split("/")[-2]: read_document(topic, self.retained[topic], self.prefix) for topic in topics}

    def state(self, target: str) -> bytes | None:
        """Return the state of an entity: ``device/entity`` of the system ``halimede``, or a whole path below it."""
        return self.retained.get(f"{self.prefix}/halimede/halimede/{target}")

    def count(self, topic_end: str) -> int:
        """Return how many messages came on topics with this end."""
        return sum(topic.endswith(topic_end) for topic, _ in self.messages)
