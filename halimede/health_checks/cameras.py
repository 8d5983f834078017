"""The checks of cameras: each camera that has published a status runs, or a row says why it gives no frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from halimede.api.placement import camera_readers
from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts
from halimede.messages import CameraStatus
from halimede.topics import CAMERA_STATUS, NODE_CAMERA_STATUS

#: the name of the check
NAME = "cameras"
#: most rows of cameras that give no frames
MOST_SHOWN = 10
#: what to do about a camera, by the reason in its status; ``{topic}`` is the topic of the status
REMEDIES = {
    "Gone": "restart the process that read it; if it is gone for good, publish an empty retained message on {topic}",
    "Forbidden": "set source.url to an address that its node allows: docs/security.md, Downloads",
    "Unauthorized": "check its user and password: docs/cameras.md, Secrets",
}
#: the rules of cameras that give no frames: of all others, and of those that have failed and are read by a service
SILENT = CheckRule(
    NAME,
    "warning",
    "a camera is stalled or gone, or has failed without a service that reads it",
    "no frames come from it",
    "check its address and its power; docs/cameras.md explains each reason",
)
FAILED = CheckRule(
    NAME,
    "problem",
    "a camera that a service reads has failed",
    "that service gets no frames from it, although it is `Running`",
    "check its address and its power; docs/cameras.md explains each reason",
    fails=True,
)


def examine_cameras(facts: SystemFacts) -> Iterator[Check]:
    """Yield a row for each camera that gives no frames, at most ``MOST_SHOWN``, those that fail a command first.

    Else one row with the number of cameras that run; none if no camera has a status.
    """
    cameras = facts.bus.cameras
    unhealthy = [(topic, camera) for topic, camera in cameras if camera.state in {"stalled", "failed", "gone"}]
    if cameras and not unhealthy:
        running = sum(camera.state == "running" for _, camera in cameras)
        yield ok(NAME, f"{running} of {len(cameras)} run, none has failed")
    readers = camera_readers(facts.services())
    rows = [_row(topic, camera, readers) for topic, camera in unhealthy]
    yield from sorted(rows, key=lambda row: not row.fails)[:MOST_SHOWN]


def _row(topic: str, camera: CameraStatus, readers: Mapping[tuple[str, str], Sequence[str]]) -> Check:
    """Return the row of a camera that gives no frames.

    ``readers``: the services that read a camera, by namespace and camera. An edge worker that opens a camera itself
    publishes the status of its node, and is a reader as well.
    """
    names = CAMERA_STATUS.parse(topic) or NODE_CAMERA_STATUS.parse(topic) or {}
    services = readers.get((names.get("ns", ""), camera.camera), [])
    rule = FAILED if camera.state == "failed" and (services or "node" in names) else SILENT
    what = f"{camera.state}: {camera.reason}: {camera.error} ({camera.source})"
    reading = f", read by {', '.join(services)}" if services else ""
    return rule.row(
        what + reading, f"camera/{camera.camera}", remedy=REMEDIES.get(camera.reason, "").format(topic=topic)
    )
