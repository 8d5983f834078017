"""The checks of cameras that report their state."""

from __future__ import annotations

from collections.abc import Iterator

from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts

NAME = "cameras"
#: cameras that are named
SHOWN = 10
REMEDIES = {
    "Gone": "restart the process that read it; if it is gone for good, publish an empty retained message on {topic}",
    "Forbidden": "set source.url to an address that its node allows: docs/security.md, Downloads",
    "Unauthorized": "check its user and password: docs/cameras.md, Secrets",
}
SILENT = CheckRule(
    NAME,
    "warning",
    "a camera is stalled, failed or gone",
    "no frames come from it",
    "check its address and its power; docs/cameras.md explains each reason",
)


def examine_cameras(facts: SystemFacts) -> Iterator[Check]:
    """Check cameras; where none reports its state there is no row."""
    cameras = facts.bus.cameras
    bad = [(topic, camera) for topic, camera in cameras if camera.state in {"stalled", "failed", "gone"}]
    if cameras and not bad:
        running = sum(camera.state == "running" for _, camera in cameras)
        yield ok(NAME, f"{running} of {len(cameras)} run, none has failed")
    for topic, camera in bad[:SHOWN]:
        what = f"{camera.camera} ({camera.source}): {camera.state}: {camera.reason}: {camera.error}"
        yield SILENT.row(what, remedy=REMEDIES.get(camera.reason, "").format(topic=topic))
