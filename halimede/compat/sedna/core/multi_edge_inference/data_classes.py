"""Values between Sedna's multi-edge components, for scripts that make or read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Any

__all__ = ("OP_MODE", "DetTrackResult", "Target", "TargetImages")

#: Sedna's format of a detection time
WHEN = "%a, %d %B %Y %H:%M:%S.%f"


class OP_MODE(Enum):  # noqa: N801  # Sedna's name
    """What a video analytics service does, as Sedna names it."""

    DETECTION = "detection"
    TRACKING = "tracking"
    COVID19 = "covid19"
    NOOP = "noop"


class DetTrackResult:
    """The findings in one frame: boxes with confidence, track and features. No list is shared.

    The parameters are Sedna's; ``tracking_ids`` becomes ``tracklets``, and ``ID`` becomes ``targetID``. ``image_key``:
    the frame's name, made of detection time and camera.
    """

    def __init__(  # noqa: PLR0917  # Sedna's order
        self,
        frame_index: int = 0,
        bbox: Sequence[Any] | None = None,
        scene: object = None,
        confidence: Sequence[Any] | None = None,
        detection_time: object = None,
        camera: int = 0,
        bbox_coord: Sequence[Any] = (),
        tracking_ids: Sequence[Any] = (),
        features: Sequence[Any] = (),
        is_target: object = False,  # noqa: FBT002
        ID: Sequence[Any] = (),  # noqa: N803
    ) -> None:
        self.userID = "DEFAULT"
        self.frame_index = frame_index
        self.bbox = bbox
        self.scene = scene
        self.confidence = confidence
        self.detection_time = detection_time
        self.camera = camera
        self.bbox_coord = list(bbox_coord)
        self.tracklets = list(tracking_ids)
        self.features = list(features)
        self.is_target = is_target
        self.targetID = list(ID)
        self.image_key = _key(detection_time, camera)


class TargetImages:
    """Pictures of the targets that the user ``userid`` searches for."""

    def __init__(self, userid: str, targets: Sequence[Any] = ()) -> None:
        self.userid = userid
        self.targets = list(targets)


class Target:
    """A target that a user searches for; attributes have the parameters' names without the underscore."""

    def __init__(
        self,
        _userid: str,
        _features: Sequence[Any],
        _targetid: str = "0000",
        _tracking_id: str | None = None,
        _location: str | None = None,
        _frame_index: int = 0,
    ) -> None:
        self.userid = _userid
        self.features = _features
        self.targetid = _targetid
        self.tracking_id = _tracking_id
        self.location = _location
        self.frame_index = _frame_index


def _key(detected: object, camera: int) -> str:
    """Return a frame's name from detection time and camera; "0" without a time in Sedna's format."""
    try:
        return f"{datetime.strptime(str(detected), WHEN).timestamp()}_{camera}"  # noqa: DTZ007  # as it was written
    except ValueError:
        return "0"
