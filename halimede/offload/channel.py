"""Topics of requests and replies: those of a service's offload, or of one hop of a multi-edge service.

A hop is a step of the way of findings: from member to member (``share``), or from members to the joint (``join``).
Requesting (``offload.client``) and answering (``pipeline.intake``) work the same on every ``Channel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from halimede import topics
from halimede.bus import Packet
from halimede.errors import InvalidFieldError
from halimede.messages import Frame, Load, Reply
from halimede.topic import Address, Filter, Topic

#: most bytes of correlation data
MAX_CORRELATION = 64


@dataclass(frozen=True, slots=True)
class Channel:
    """The topics between requesters and the workers that answer, as ``worker`` uses them.

    Attributes:
        worker: the name of the worker that uses the channel, to request or to answer.
        names: the names in all its topics but the worker's: namespace (``ns``), service, and ``hop`` for a hop.
        request: the topic of requests to one worker.
        reply: the topic of replies to one worker.
        anybody: the shared topic of requests to any worker; None: for a hop, and in a service with tiers.
        load: the topic of advertised loads; None: for a hop, where ``worker.membership`` knows the workers.
        tier: in a service with tiers, the tier whose load counts; else empty.

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
        """Return the request topic of ``worker``; for an empty name that of any worker, or None if there is none."""
        if worker:
            return self.request.at(**self.names, worker=worker)
        return self.anybody.at(**self.names) if self.anybody else None

    @property
    def answers(self) -> Address[Reply]:
        """The topic of replies to this worker."""
        return self.reply.at(**self.names, worker=self.worker)

    @property
    def requests(self) -> tuple[Filter[Frame], ...]:
        """The filters of requests that this worker answers."""
        directed = self.request.filter(**self.names, worker=self.worker)
        return (directed, self.anybody.filter(group=self.service, **self.names)) if self.anybody else (directed,)

    @property
    def loads(self) -> Filter[Load] | None:
        """The filter of the loads that workers advertise; None: they advertise none."""
        return self.load.filter(**self.names) if self.load else None

    def asker(self, topic: str) -> str:
        """Return the worker that receives replies on ``topic``; empty if that is no reply topic of this channel."""
        names = self.reply.parse(topic)
        if names is None:
            return ""
        worker = names["worker"]
        return worker if names == {**self.names, "worker": worker} else ""

    def reply_address(self, packet: Packet) -> Address[Reply]:
        """Return a request's reply topic. Raises InvalidFieldError unless a worker of this channel owns it.

        Raises it also for missing or too long correlation data.
        """
        if not self.asker(packet.response_topic):
            raise InvalidFieldError("response topic", packet.response_topic, "use the reply topic of this service")
        if not 0 < len(packet.correlation) <= MAX_CORRELATION:
            raise InvalidFieldError("correlation data", packet.correlation, f"send 1 to {MAX_CORRELATION} bytes")
        return Address(self.reply, packet.response_topic)


def inference(namespace: str, service: str, worker: str, *, tier: str = "") -> Channel:
    """Return the channel between the edge and the cloud workers of a joint inference service.

    ``worker``: who uses it. ``tier``: in a service with tiers, the requested one; for workers that answer, their own.
    """
    names = {"ns": namespace, "service": service}
    anybody = None if tier else topics.REQUEST
    return Channel(worker, names, topics.REQUEST_TO, topics.REPLY, anybody, topics.LOAD, tier)


def hop(namespace: str, service: str, name: str, worker: str) -> Channel:
    """Return the channel of the hop ``name`` (``share`` or ``join``) of a multi-edge service, as ``worker`` uses it."""
    names = {"ns": namespace, "service": service, "hop": name}
    return Channel(worker, names, topics.HOP_REQUEST, topics.HOP_REPLY)
