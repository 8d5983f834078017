"""What Sedna's multi-edge components hand one another, for scripts that make or read these values themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Any

__all__ = ("OP_MODE", "DetTrackResult", "Target", "TargetImages")

#: how Sedna writes when something was detected
WHEN = "%a, %d %B %Y %H:%M:%S.%f"


class OP_MODE(Enum):  # noqa: N801  # Sedna's name
    """What a video analytics service does."""

    DETECTION = "detection"
    TRACKING = "tracking"
    COVID19 = "covid19"
    NOOP = "noop"


class DetTrackResult:
    """What was found in one frame: boxes and, of each, its confidence, track and features. No list is shared."""

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
    """Pictures of those whom a user looks for."""

    def __init__(self, userid: str, targets: Sequence[Any] = ()) -> None:
        self.userid = userid
        self.targets = list(targets)


class Target:
    """One whom a user looks for."""

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
    """Name a frame by when it was looked at and by whose it is; "0" where that is not said as Sedna says it."""
    try:
        return f"{datetime.strptime(str(detected), WHEN).timestamp()}_{camera}"  # noqa: DTZ007  # as it was written
    except ValueError:
        return "0"
