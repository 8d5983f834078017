"""A system that consists of its retained messages: what a bridge receives, without processes."""

from __future__ import annotations

from typing import Any

import msgspec

from halimede import topics
from halimede.bus import Bus
from halimede.contract.examples import EXAMPLES
from halimede.messages import (
    CameraStatus,
    Condition,
    GmPresence,
    HardSample,
    Metric,
    ModelFacts,
    OccupancyEvent,
    Presence,
    ServedVersion,
    Status,
    StatusDocument,
)

JOINT, MODELS = "jointinferenceservices", "models"
#: metrics of a service that has answered 1000 frames
METRICS = {
    "inferenceNumber": "1000",
    "uploadCloudRatio": "0.125",
    "uploadedBytes": "4096000",
    "edgeLatencyP95Ms": "12.5",
    "offloadLatencyP95Ms": "80",
    "queued": "2",
}


def status_document(
    name: str = "digits",
    *,
    plural: str = JOINT,
    phase: str = "Running",
    message: str = "",
    namespace: str = "default",
    metrics: dict[str, str] | None = None,
    **fields: Any,
) -> StatusDocument:
    """Return a status as GM publishes it."""
    condition = Condition(type=phase, reason="AllWorkersRun" if phase == "Running" else "NodeOffline", message=message)
    return StatusDocument(
        api_version="sedna.io/v1alpha1",
        kind="Model" if plural == MODELS else "JointInferenceService",
        namespace=namespace,
        name=name,
        uid=f"uid-{name}"[:64],
        generation=1,
        status=Status(
            phase=phase,
            conditions=[condition],
            metrics=[Metric(key=key, value=value) for key, value in (METRICS if metrics is None else metrics).items()],
            **fields,
        ),
    )


def model_document(installed: str = "1" * 64, latest: str = "", **fields: Any) -> StatusDocument:
    """Return the status of a Model; ``latest``: the digest of the version that nodes are fetching; empty: none."""
    return status_document(
        "digits-small",
        plural=MODELS,
        phase="Pending" if latest else "Ready",
        metrics={},
        versions=[ServedVersion(version=installed[:12], digest=installed)],
        model=ModelFacts(digest=latest or installed),
        **fields,
    )


def presence(node: str = "edge0", *, online: bool = True, trouble: str = "") -> Presence:
    return Presence(node=node, epoch=1, online=online, version="0.1.0" if online else "", trouble=trouble)


def camera_status(camera: str = "cam0", state: str = "running", **fields: Any) -> CameraStatus:
    return msgspec.convert({"camera": camera, "state": state, "fps": 10.0, **fields}, CameraStatus)


def hard_sample(**fields: Any) -> HardSample:
    sample = EXAMPLES[topics.HARD_SAMPLE.id]
    assert isinstance(sample, HardSample)
    return msgspec.structs.replace(sample, **fields)


def occupancy_event(number: int = 1, type_: str = "entered", **fields: Any) -> OccupancyEvent:
    """Return an event of camera ``cam0``; a person in the zone ``door`` by default."""
    count = 0 if type_ == "left" else 1
    event = {
        "id": f"{number:032x}", "sequence": number, "type": type_, "service": "digits", "camera": "cam0",
        "label": "person", "zone": "door", "count": count, "before": 1 - count, "timeNs": 1_767_225_600_000_000_000,
        "sinceNs": 1_767_225_600_000_000_000, **fields,
    }  # fmt: skip
    if count and "present" not in fields:
        keys = ("label", "zone", "count", "sinceNs")
        event["present"] = [{key: event[key] for key in keys}]
    return msgspec.convert(event, OccupancyEvent)


class StandInSystem:
    """Publishes a system's messages over ``bus``, which the caller enters."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def start(self) -> None:
        """Publish one service with its Model, one node and one camera."""
        await self.manager()
        await self.status(status_document())
        await self.status(model_document())
        await self.node(presence())
        await self.camera(camera_status())

    async def manager(self, *, online: bool = True) -> None:
        await self.bus.publish(topics.GM_PRESENCE.at(), GmPresence(epoch=1, online=online, version="0.1.0"))

    async def status(self, document: StatusDocument) -> None:
        await self.bus.publish(_status_of(document), document)

    async def remove(self, document: StatusDocument) -> None:
        await self.bus.clear(_status_of(document))

    async def node(self, presence_: Presence) -> None:
        await self.bus.publish(topics.PRESENCE.at(node=presence_.node), presence_)

    async def camera(self, status: CameraStatus) -> None:
        await self.bus.publish(topics.CAMERA_STATUS.at(ns="default", camera=status.camera), status)

    async def occupancy(self, event: OccupancyEvent) -> None:
        await self.bus.publish(_occupancy_of(event), event)

    async def no_occupancy(self, event: OccupancyEvent) -> None:
        await self.bus.clear(_occupancy_of(event))

    async def picture(self, sample: HardSample, service: str = "digits") -> None:
        await self.bus.publish(topics.HARD_SAMPLE.at(ns="default", service=service), sample)


def _occupancy_of(event: OccupancyEvent) -> Any:
    return topics.OCCUPANCY.at(ns="default", service=event.service, camera=event.camera)


def _status_of(document: StatusDocument) -> Any:
    plural = MODELS if document.kind == "Model" else JOINT
    return topics.STATUS.at(ns=document.namespace, plural=plural, name=document.name)
