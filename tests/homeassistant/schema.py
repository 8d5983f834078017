"""The schema of the documents that the bridge publishes: narrower than Home Assistant's own, and without it.

Home Assistant drops a document with one invalid entity as a whole. What is not listed here must not be in a document.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

#: ids in topics, as Home Assistant's discovery reads them
ID = re.compile(r"[a-zA-Z0-9_-]+")
PLATFORMS = frozenset({"binary_sensor", "event", "image", "number", "sensor", "switch", "update"})

#: one line without control characters
Shown = Annotated[str, Meta(min_length=1, max_length=64)]
TopicText = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^+#\x00]+$")]
StateClass = Literal["measurement", "total_increasing"]


class _Entity(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="platform"):
    unique_id: Annotated[str, Meta(min_length=1, max_length=512)]
    name: Shown
    json_attributes_topic: TopicText = ""
    entity_category: Literal["diagnostic", ""] = ""


class BinarySensor(_Entity, tag="binary_sensor"):
    state_topic: TopicText
    device_class: Literal["problem", "connectivity", "occupancy", ""] = ""


class Sensor(_Entity, tag="sensor"):
    state_topic: TopicText
    device_class: Literal["duration", "data_size", ""] = ""
    state_class: StateClass | Literal[""] = ""
    unit_of_measurement: Literal["%", "B", "B/d", "ms", "frames", "fps", ""] = ""


class Image(_Entity, tag="image"):
    image_topic: TopicText
    content_type: Literal["image/jpeg", "image/png"]


class Update(_Entity, tag="update"):
    state_topic: TopicText


class Number(_Entity, tag="number"):
    state_topic: TopicText
    command_topic: TopicText
    min: float
    max: float
    step: float
    mode: Literal["box"]
    unit_of_measurement: Literal["%"]


class Switch(_Entity, tag="switch"):
    state_topic: TopicText
    command_topic: TopicText


class EventEntity(_Entity, tag="event"):
    state_topic: TopicText
    event_types: Annotated[list[Literal["entered", "left", "changed"]], Meta(min_length=1)]


AnyEntity = BinarySensor | Sensor | Image | Update | Number | Switch | EventEntity


class Device(Struct, forbid_unknown_fields=True, kw_only=True):
    identifiers: Annotated[list[str], Meta(min_length=1, max_length=1)]
    name: Shown
    manufacturer: Literal["halimede"]
    model: Shown
    sw_version: Shown = "-"
    via_device: str = ""


class Origin(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Literal["halimede"]
    sw_version: Shown


class Document(Struct, forbid_unknown_fields=True, kw_only=True):
    device: Device
    origin: Origin
    availability_topic: TopicText
    components: Annotated[dict[str, dict[str, Any]], Meta(min_length=1)]

    @property
    def entities(self) -> dict[str, AnyEntity]:
        """The entities that are not removed, by their ids."""
        present = {id_: fields for id_, fields in self.components.items() if len(fields) > 1}
        return {id_: msgspec.convert(fields, AnyEntity) for id_, fields in present.items()}

    @property
    def removed(self) -> dict[str, str]:
        """The platforms of removed entities."""
        return {id_: fields["platform"] for id_, fields in self.components.items() if len(fields) == 1}


def read_document(topic: str, payload: bytes, prefix: str = "homeassistant") -> Document:
    """Return a document that Home Assistant would accept; raise an error for any other."""
    start, kind, *ids, end = topic.removeprefix(f"{prefix}/").join(("/", "")).split("/")
    assert (start, kind, end) == ("", "device", "config")
    assert len(ids) in {1, 2}
    assert all(map(ID.fullmatch, ids))
    document = msgspec.json.decode(payload, type=Document)
    for id_, entity in document.entities.items():
        assert ID.fullmatch(id_)
        assert entity.name.isprintable()
    assert set(document.removed.values()) <= PLATFORMS
    assert document.device.name.isprintable()
    return document
