"""Who asks whom on which topics: a joint inference service's offload, or one hop of a multi-edge service.

Asking (``offload.client``) and answering (``pipeline.intake``) are the same on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from halimede import topics
from halimede.bus import Packet
from halimede.errors import InvalidFieldError
from halimede.messages import Frame, Load, Reply
from halimede.topic import Address, Filter, Topic

#: bytes of what a reply is matched with
MAX_CORRELATION = 64


@dataclass(frozen=True, slots=True)
class Channel:
    """The topics between those who ask and those who answer, as ``worker`` uses them.

    ``anybody`` is where one asks without knowing whom, ``load`` where those who answer say what they can take: a hop
    has neither, there ``Membership`` knows. ``tier``: whose load counts, where a service has tiers; there one asks
    nobody whom one does not know.
    """

    worker: str
    names: Mapping[str, str]
    request: Topic[Frame]
    reply: Topic[Reply]
    anybody: Topic[Frame] | None = None
    load: Topic[Load] | None = None
    tier: str = ""

    @property
    def service(self) -> str:
        """The name of the service."""
        return self.names["service"]

    def to(self, worker: str) -> Address[Frame] | None:
        """Return where ``worker`` is asked, or with an empty name anybody; None: nobody can be."""
        if worker:
            return self.request.at(**self.names, worker=worker)
        return self.anybody.at(**self.names) if self.anybody else None

    @property
    def answers(self) -> Address[Reply]:
        """Where we are answered."""
        return self.reply.at(**self.names, worker=self.worker)

    @property
    def requests(self) -> tuple[Filter[Frame], ...]:
        """What we listen to when we answer."""
        directed = self.request.filter(**self.names, worker=self.worker)
        return (directed, self.anybody.filter(group=self.service, **self.names)) if self.anybody else (directed,)

    @property
    def loads(self) -> Filter[Load] | None:
        """What says who can take how much."""
        return self.load.filter(**self.names) if self.load else None

    def asker(self, topic: str) -> str:
        """Return the worker whom an answer on ``topic`` reaches; empty if it is none of this channel's."""
        names = self.reply.parse(topic)
        if names is None:
            return ""
        worker = names["worker"]
        return worker if names == {**self.names, "worker": worker} else ""

    def reply_address(self, packet: Packet) -> Address[Reply]:
        """Return where a request is answered. Raises InvalidFieldError unless that is a worker of this channel."""
        if not self.asker(packet.response_topic):
            raise InvalidFieldError("response topic", packet.response_topic, "use the reply topic of this service")
        if not 0 < len(packet.correlation) <= MAX_CORRELATION:
            raise InvalidFieldError("correlation data", packet.correlation, f"send 1 to {MAX_CORRELATION} bytes")
        return Address(self.reply, packet.response_topic)


def inference(namespace: str, service: str, worker: str, *, tier: str = "") -> Channel:
    """Return the channel between the edge and the cloud workers of a joint inference service.

    ``tier``: where it has tiers, the one that is asked; of those who answer, their own.
    """
    names = {"ns": namespace, "service": service}
    anybody = None if tier else topics.REQUEST
    return Channel(worker, names, topics.REQUEST_TO, topics.REPLY, anybody, topics.LOAD, tier)


def hop(namespace: str, service: str, name: str, worker: str) -> Channel:
    """Return the channel of one hop of a multi-edge service: ``share`` or ``join``."""
    names = {"ns": namespace, "service": service, "hop": name}
    return Channel(worker, names, topics.HOP_REQUEST, topics.HOP_REPLY)
