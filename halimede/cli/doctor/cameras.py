"""The check of ``doctor`` that concerns cameras which are read for others: what they say of themselves is retained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli.doctor.check import Check, ok, warning
from halimede.messages import CameraStatus

#: cameras that are looked at, and of these how many are named
MOST, SHOWN = 1000, 10
DO = {
    "Gone": "start again who read it; if it is gone for good, clear {topic}: an empty retained message",
    "Unauthorized": "check its user and password: docs/cameras.md, Secrets",
}
LOOK = "check its address, and that it is on: docs/cameras.md says what each reason means"


async def heard(bus: Bus, seconds: float) -> list[tuple[str, CameraStatus]]:
    """Return the topics and statuses of cameras, as they are said within some seconds."""
    found: dict[str, CameraStatus] = {}

    async def status(delivery: Delivery[CameraStatus]) -> None:
        if len(found) < MOST:
            found[delivery.address.text] = delivery.body

    await bus.subscribe(topics.CAMERA_STATUS.filter(), status)
    await asyncio.sleep(seconds)
    await bus.unsubscribe(topics.CAMERA_STATUS.filter())
    return sorted(found.items())


def on_cameras(statuses: Iterable[tuple[str, CameraStatus]]) -> list[Check]:
    """Judge cameras. Where none is read for others there is nothing to say."""
    every = list(statuses)
    bad = [(topic, said) for topic, said in every if said.state in {"stalled", "failed", "gone"}]
    if not bad:
        running = sum(said.state == "running" for _, said in every)
        return [ok("cameras", f"{running} of {len(every)} run, none has failed")] if every else []
    return [
        warning(
            "cameras",
            f"{said.camera} ({said.source}): {said.state}: {said.reason}: {said.error}",
            DO.get(said.reason, LOOK).format(topic=topic),
        )
        for topic, said in bad[:SHOWN]
    ]
