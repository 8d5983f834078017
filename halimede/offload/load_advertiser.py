"""Advertises a worker's free capacity, its load, to its requesters: a retained message on its load topic.

A worker that answers requests (a cloud worker or a tier) has a ``LoadAdvertiser``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from halimede import topics
from halimede.bus import Announcement, Bus, Packet
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.messages import Load
from halimede.offload.channel import Channel

#: fraction by which the mean time of a sample must change for the load to be published again
LEAST_CHANGE = 0.1


def load_will(namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a worker's connection: when it breaks, the broker clears the advertised load."""
    address = topics.LOAD.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


class LoadAdvertisement(Protocol):
    """Advertises a worker's capacity; ``RequestIntake`` uses it."""

    def touch(self) -> None:
        """Publish the load soon if it differs from the advertised one. Does not wait."""

    async def run(self) -> None:
        """Advertise until withdrawn or cancelled."""

    async def withdraw(self) -> None:
        """Announce that the worker stops, and clear the retained message."""


class LoadAdvertiser(RetainedPublisher[Load]):
    """A ``LoadAdvertisement`` that publishes the load of the channel's worker, which ``load`` returns."""

    def __init__(self, bus: Bus, channel: Channel, load: Callable[[], Load]) -> None:
        address = topics.LOAD.at(**channel.names, worker=channel.worker)
        super().__init__(bus, address, load, farewell=lambda: Load(credits=0, leaving=True), same=_is_same)


def _is_same(now: Load, advertised: Load) -> bool:
    """Whether two loads are equal for a load balancer: mean times of samples may differ by LEAST_CHANGE."""
    if (now.credits, now.queued) != (advertised.credits, advertised.queued):
        return False
    return abs(now.service_ms - advertised.service_ms) <= LEAST_CHANGE * advertised.service_ms
