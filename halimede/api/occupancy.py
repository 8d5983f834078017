"""Occupancy events of an edge worker: when an object enters, leaves, or their number changes, by camera and zone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar

from msgspec import Meta

from halimede.api.base import Spec
from halimede.api.schema import ValidationRule
from halimede.errors import InvalidFieldError
from halimede.messages import Label
from halimede.polygons import Point, area, is_self_crossing

#: the least area of a zone, as a share of the picture: less than about eight pixels of a 4K picture is a mistake
MIN_AREA = 1e-6
#: texts of errors: what to write
NAME_FIX = "give each zone of a camera another name"
CAMERA_FIX = "name a camera of edgeWorker.source.cameras; without a source that is the service's name"
AREA_FIX = "give corners that enclose an area of the picture"
CROSSING_FIX = "give the corners in order along the zone's border, so that no two sides cross"
#: a share of the picture's width or height, and a corner: [x, y]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Corner = Annotated[list[Fraction], Meta(min_length=2, max_length=2)]


class Zone(Spec, kw_only=True):
    """A part of a camera's picture. An object is in it if the middle of its box's lower side is."""

    name: Annotated[Label, Meta(description="Its name; unique for the camera.")]
    camera: Annotated[Label, Meta(description="The camera whose picture it is a part of.")]
    polygon: Annotated[
        list[Corner],
        Meta(
            min_length=3,
            max_length=32,
            description="Its corners [x, y] in order, in fractions of the picture's width and height.",
        ),
    ]

    @property
    def corners(self) -> list[Point]:
        """Its corners (x, y), in fractions of the picture."""
        return [(x, y) for x, y in self.polygon]


class Occupancy(Spec, kw_only=True):
    """Which objects count, for how long before an event, and the zones."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.zones) || self.zones.all(a, self.zones.exists_one(b, b.camera == a.camera && b.name == a.name))",
            NAME_FIX,
            ".zones",
        ),
    )

    min_frames: Annotated[
        int,
        Meta(ge=1, le=1000, description="Consecutive frames that must show a change before it is an event."),
    ] = 3
    hold_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds for which an object must be missing before it has left, in addition to minFrames.",
        ),
    ] = 2.0
    min_score: Annotated[float, Meta(ge=0, le=1, description="Objects with a lower score do not count.")] = 0.5
    labels: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=128)]],
        Meta(max_length=64, description="The labels that count. Default: all."),
    ] = []
    zones: Annotated[
        list[Zone], Meta(max_length=64, description="Parts of pictures with their own events, besides the whole.")
    ] = []


def check_occupancy(at: str, occupancy: Occupancy | None, cameras: Collection[str]) -> None:
    """Check the zones of the field ``at``. ``cameras``: those of the source; empty: unknown.

    Raises InvalidFieldError.
    """
    names: set[tuple[str, str]] = set()
    for i, zone in enumerate(occupancy.zones if occupancy else ()):
        field = f"{at}.zones[{i}]"
        if (zone.camera, zone.name) in names:
            raise InvalidFieldError(f"{at}.zones", f"{zone.camera}/{zone.name}", NAME_FIX)
        names.add((zone.camera, zone.name))
        if cameras and zone.camera not in cameras:
            raise InvalidFieldError(f"{field}.camera", zone.camera, CAMERA_FIX)
        if is_self_crossing(zone.corners):
            raise InvalidFieldError(f"{field}.polygon", zone.polygon, CROSSING_FIX)
        if area(zone.corners) < MIN_AREA:
            raise InvalidFieldError(f"{field}.polygon", zone.polygon, AREA_FIX)
