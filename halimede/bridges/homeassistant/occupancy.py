"""Which objects are in front of which camera: occupancy sensors and events of a camera's device.

A camera's retained message has the objects that are there now. Home Assistant needs sensors that stay when no object is
there, so a zone and label that have occurred once keep their sensor until the service or its occupancy is removed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from halimede.bridges.homeassistant.discovery import UNKNOWN, Entity, display_text, slug, state_switch
from halimede.bridges.homeassistant.published_record import OccupancySensor
from halimede.messages import OccupancyEvent

#: most zones with a label of one camera and service, and of all, that become sensors
MAX_CAMERA_SENSORS, MAX_SENSORS = 64, 4096
#: most ids of events that are remembered for a camera and service, so that a repeated event is not posted again
MAX_IDS = 256
#: characters of a digest in an id: zones and labels may be any text
ID_DIGITS = 12
#: the types of events that Home Assistant may receive
EVENT_TYPES = ("entered", "left", "changed")


class OccupancyKey(NamedTuple):
    """The camera of a service."""

    namespace: str
    service: str
    camera: str


class OccupancyView:
    """The last events of cameras, and the zones and labels that have occurred."""

    def __init__(self) -> None:
        self.events: dict[OccupancyKey, OccupancyEvent] = {}
        #: zones and labels in the order in which they occurred, as keys
        self._sensors: dict[OccupancyKey, dict[tuple[str, str], None]] = {}
        self._ids: dict[OccupancyKey, deque[str]] = {}
        #: how often a zone and label got no sensor; the listener adds the events of cameras that are not shown
        self.ignored = 0
        #: grows with each change of the sensors
        self.version = 0

    @property
    def keys(self) -> list[OccupancyKey]:
        """All cameras with sensors, by service."""
        return list(self._sensors)

    @property
    def sensors(self) -> tuple[OccupancySensor, ...]:
        """All sensors, for the record."""
        return tuple(OccupancySensor(*key, *pair) for key, pairs in self._sensors.items() for pair in pairs)

    def restore(self, sensors: Sequence[OccupancySensor]) -> None:
        """Take the sensors of the record over; without an event their state is unknown."""
        for sensor in sensors[:MAX_SENSORS]:
            key = OccupancyKey(sensor.namespace, sensor.service, sensor.camera)
            self._add(key, (sensor.zone, sensor.label))

    def has_event(self, key: OccupancyKey, id_: str) -> bool:
        """Whether an event with this id was recorded: workers may publish one twice."""
        return id_ in self._ids.get(key, ())

    def record(self, key: OccupancyKey, event: OccupancyEvent) -> None:
        """Record an event."""
        self.events[key] = event
        for pair in [(event.zone, event.label), *((entry.zone, entry.label) for entry in event.present)]:
            self._add(key, pair)
        self._ids.setdefault(key, deque(maxlen=MAX_IDS)).append(event.id)

    def drop(self, key: OccupancyKey) -> None:
        """Remove all of a camera of a service."""
        self.events.pop(key, None)
        self._ids.pop(key, None)
        if self._sensors.pop(key, None) is not None:
            self.version += 1

    def entities(self, namespace: str, camera: str) -> Iterator[Entity]:
        """Yield the entities of a camera: events by service, and a sensor for each zone and label."""
        for key, pairs in self._sensors.items():
            if (key.namespace, key.camera) != (namespace, camera):
                continue
            options: dict[str, Any] = {"name": f"Events of {display_text(key.service, 48)}"}
            yield Entity(event_id(key.service), "event", {**options, "event_types": list(EVENT_TYPES)}, None)
            event = self.events.get(key)
            for zone, label in pairs:
                yield _sensor(key, zone, label, event)

    def _add(self, key: OccupancyKey, pair: tuple[str, str]) -> None:
        """Add a sensor, if there is space for it."""
        pairs = self._sensors.get(key, {})
        if pair in pairs:
            return
        if len(pairs) >= MAX_CAMERA_SENSORS or sum(map(len, self._sensors.values())) >= MAX_SENSORS:
            self.ignored += 1
            return
        self._sensors[key] = {**pairs, pair: None}
        self.version += 1


def event_id(service: str) -> str:
    """Return the id of the entity with the events of a service."""
    return f"events_{slug(service)}"


def event_payload(key: OccupancyKey, event: OccupancyEvent) -> bytes:
    """Return the payload of an event: its type and what automations may use."""
    fields = {
        "event_type": event.type,
        "id": event.id,
        "service": key.service,
        "camera": key.camera,
        "label": event.label,
        "zone": event.zone,
        "count": event.count,
        "before": event.before,
        "score": round(event.score, 4),
        "time": _time(event.time_ns),
    }
    return msgspec.json.encode(fields)


def _sensor(key: OccupancyKey, zone: str, label: str, event: OccupancyEvent | None) -> Entity:
    """Return the sensor of a zone and a label; without an event its state is unknown."""
    digest = hashlib.sha256(f"{zone}\0{label}".encode(errors="replace")).hexdigest()[:ID_DIGITS]
    present = next((p for p in event.present if (p.zone, p.label) == (zone, label)), None) if event else None
    shown = f"{display_text(label, 30) or 'anything'}{f' in {display_text(zone, 28)}' if zone else ''}"
    attributes = {
        "service": key.service,
        "label": label,
        "zone": zone,
        "count": present.count if present else 0,
        "since": _time(present.since_ns) if present else "",
    }
    state = state_switch(is_on=present is not None) if event else UNKNOWN
    options = {"name": shown, "device_class": "occupancy"}
    return Entity(f"occupancy_{slug(key.service)}_{digest}", "binary_sensor", options, state, attributes)


def _time(nanoseconds: int) -> str:
    """Return a time as RFC 3339; empty for one that no calendar has."""
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return ""
