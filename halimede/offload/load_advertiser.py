"""Advertises the free capacity of a cloud worker to edge workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from halimede import topics
from halimede.bus import Announcement, Bus, Packet
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.messages import Load
from halimede.offload.channel import Channel

#: share by which a sample's time must change to be published
NEWS = 0.1


def load_will(namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a cloud worker: its will clears its advertised load."""
    address = topics.LOAD.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


class LoadAdvertisement(Protocol):
    """Advertises a worker's capacity."""

    def touch(self) -> None:
        """Schedule a comparison of the load with the advertised one."""

    async def run(self) -> None:
        """Advertise until withdrawn or cancelled."""

    async def withdraw(self) -> None:
        """Stop advertising and clear the retained advertisement."""


class LoadAdvertiser(RetainedPublisher[Load]):
    """Publishes one worker's load on its channel. ``load`` returns it."""

    def __init__(self, bus: Bus, channel: Channel, load: Callable[[], Load]) -> None:
        address = topics.LOAD.at(**channel.names, worker=channel.worker)
        super().__init__(bus, address, load, farewell=lambda: Load(credits=0, leaving=True), same=_is_same)


def _is_same(now: Load, said: Load) -> bool:
    """Whether two advertisements are equal for a load balancer: mean times differ slightly each time."""
    apart = abs(now.service_ms - said.service_ms)
    return (now.credits, now.queued) == (said.credits, said.queued) and apart <= NEWS * said.service_ms
