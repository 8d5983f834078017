"""The messages that Home Assistant reads: one document for each device (MQTT device discovery), and states. Pure.

Home Assistant drops a whole document if one entity in it is not valid, and logs only a line. So each document has one
form: every name in full, no templates, and availability once, for the whole device. An entity that is gone stays in the
document with its platform alone, which removes it (homeassistant/components/mqtt/discovery.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from halimede import __version__
from halimede.cli.output import clean_cell
from halimede.errors import InvalidFieldError, shorten_middle
from halimede.names import check_label

#: Home Assistant's default prefix, and the bridge's default name for the system
DEFAULT_PREFIX, DEFAULT_SYSTEM = "homeassistant", "halimede"
#: most characters of a name that Home Assistant shows, and of the text of a state (its own limit is 255)
MAX_NAME_TEXT, MAX_STATE_TEXT = 64, 250
#: most entities of a device that are gone and stay in its document
MAX_REMOVED = 64
#: payloads of the availability topic, Home Assistant's defaults
ONLINE, OFFLINE = b"online", b"offline"
#: the payload by which Home Assistant resets a state to unknown
UNKNOWN = b"None"
#: the topic of an entity's state, where it is not ``state_topic``
STATE_FIELDS = {"image": "image_topic"}


@dataclass(frozen=True, slots=True)
class DiscoveryTopics:
    """The topics of one bridge at Home Assistant's broker.

    Attributes:
        prefix: Home Assistant's discovery prefix.
        system: the name of the halimede system, a label.
        outer: levels before every topic at the broker (``a/b/``), which the connection adds. Texts inside documents
            have them.

    """

    prefix: str = DEFAULT_PREFIX
    system: str = DEFAULT_SYSTEM
    outer: str = ""

    @classmethod
    def from_options(cls, prefix: str, system: str, outer: str = "") -> DiscoveryTopics:
        """Return the topics that options select. Raises InvalidFieldError for ``--prefix`` and ``--name``."""
        fix = "write the discovery prefix of Home Assistant's MQTT options, such as homeassistant"
        levels = prefix.split("/")
        if len(prefix) > 256 or prefix.startswith("$") or not all(levels) or {"+", "#"} & set(prefix):
            raise InvalidFieldError("--prefix", prefix, fix)
        if not prefix.isprintable() or " " in prefix:
            raise InvalidFieldError("--prefix", prefix, fix)
        return cls(prefix, check_label("--name", system), outer)

    @property
    def base(self) -> str:
        """The topic below which are all messages of this bridge but the documents."""
        return f"{self.prefix}/halimede/{self.system}"

    @property
    def availability(self) -> str:
        """The topic of the bridge's birth and will."""
        return f"{self.base}/availability"

    @property
    def claim(self) -> str:
        """The topic on which bridges of one name detect one another."""
        return f"{self.base}/claim"

    @property
    def record(self) -> str:
        """The topic of the retained record of what is published."""
        return f"{self.base}/published"

    @property
    def birth(self) -> str:
        """The topic on which Home Assistant publishes ``online`` when it has started."""
        return f"{self.prefix}/status"

    @property
    def commands(self) -> str:
        """The filter of all commands from Home Assistant."""
        return f"{self.base}/+/+/set"

    def document(self, device: str) -> str:
        """Return the topic of a device's document."""
        return f"{self.prefix}/device/{self.system}/{device}/config"

    def state(self, device: str, entity: str) -> str:
        """Return the topic of an entity's state; below it are ``attributes`` and ``set``."""
        return f"{self.base}/{device}/{entity}"

    def is_document(self, topic: str) -> bool:
        """Whether a topic is that of a device's document."""
        return topic.startswith(f"{self.prefix}/device/{self.system}/") and topic.endswith("/config")

    def device_of(self, topic: str) -> str:
        """Return the id of the device that has a document or a state on a topic; empty for the bridge's own topics."""
        levels = topic.removeprefix(f"{self.prefix}/").split("/")
        return levels[2] if len(levels) >= 4 else ""

    def command_target(self, topic: str) -> tuple[str, str] | None:
        """Return the device and the entity of the topic of a command; None for any other topic."""
        levels = topic.removeprefix(f"{self.base}/").split("/")
        return (levels[0], levels[1]) if len(levels) == 3 and levels[2] == "set" else None


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity of a device.

    Attributes:
        id: identifies it within the device, also over restarts.
        platform: Home Assistant's platform, such as ``binary_sensor``.
        options: further fields of its part of the document.
        state: the retained payload of its state; None: it has none.
        attributes: shown next to the state; None: it has none.
        has_command: whether Home Assistant may send commands to it.

    """

    id: str
    platform: str
    options: Mapping[str, Any]
    state: bytes | None = UNKNOWN
    attributes: Mapping[str, Any] | None = None
    has_command: bool = False


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device of Home Assistant: its ``id``, its name and model for people, the version of its program, its entities.

    ``via``: the id of the device through which it is reached; empty: none.
    """

    id: str
    name: str
    model: str
    entities: tuple[Entity, ...]
    version: str = ""
    via: str = ""

    @property
    def platforms(self) -> dict[str, str]:
        """The platform of each entity, by its id."""
        return {entity.id: entity.platform for entity in self.entities}


@dataclass(frozen=True, slots=True)
class DeviceMessages:
    """What is published for one device.

    Attributes:
        payloads: retained payloads by topic, the document first; empty: the message is to be removed.
        platforms: the platforms of the device's entities by id, also of those that are gone; what the record keeps.

    """

    payloads: dict[str, bytes]
    platforms: dict[str, str]


def device_messages(topics: DiscoveryTopics, device: DeviceState, remembered: Mapping[str, str]) -> DeviceMessages:
    """Return the messages of a device. ``remembered``: the platforms of entities that its last document had, by id."""
    removed = {id_: platform for id_, platform in remembered.items() if id_ not in device.platforms}
    for surplus in list(removed)[:-MAX_REMOVED]:
        del removed[surplus]
    components = {entity.id: _component_fields(topics, device, entity) for entity in device.entities}
    components |= {id_: {"platform": platform} for id_, platform in removed.items()}
    about = {
        "identifiers": [f"halimede_{topics.system}_{device.id}"],
        "name": display_text(device.name),
        "manufacturer": "halimede",
        "model": device.model,
    }
    if device.version:
        about["sw_version"] = display_text(device.version)
    if device.via:
        about["via_device"] = f"halimede_{topics.system}_{device.via}"
    document = {
        "device": about,
        "origin": {"name": "halimede", "sw_version": __version__},
        "availability_topic": topics.outer + topics.availability,
        "components": components,
    }
    payloads = {topics.document(device.id): msgspec.json.encode(document)}
    for entity in device.entities:
        state = topics.state(device.id, entity.id)
        if entity.state is not None:
            payloads[state] = entity.state
        if entity.attributes is not None:
            payloads[f"{state}/attributes"] = msgspec.json.encode(entity.attributes)
    for id_ in removed:
        payloads |= dict.fromkeys(_state_topics(topics, device.id, id_), b"")
    # those that are gone come first, in the order in which they went, so the oldest are the surplus of the next time
    return DeviceMessages(payloads, removed | device.platforms)


def removal_messages(topics: DiscoveryTopics, device: str, remembered: Mapping[str, str]) -> dict[str, bytes]:
    """Return the payloads by topic that remove a device: all are empty. ``remembered``: as of ``device_messages``."""
    payloads = {topics.document(device): b""}
    for entity in remembered:
        payloads |= dict.fromkeys(_state_topics(topics, device, entity), b"")
    return payloads


def _state_topics(topics: DiscoveryTopics, device: str, entity: str) -> tuple[str, str]:
    """Return the topics of an entity that may have a retained message."""
    state = topics.state(device, entity)
    return state, f"{state}/attributes"


def _component_fields(topics: DiscoveryTopics, device: DeviceState, entity: Entity) -> dict[str, Any]:
    """Return an entity's part of the document."""
    state = topics.outer + topics.state(device.id, entity.id)
    component = {
        "platform": entity.platform,
        "unique_id": f"halimede_{topics.system}_{device.id}_{entity.id}",
        **entity.options,
        STATE_FIELDS.get(entity.platform, "state_topic"): state,
    }
    if entity.attributes is not None:
        component["json_attributes_topic"] = f"{state}/attributes"
    if entity.has_command:
        component["command_topic"] = f"{state}/set"
    return component


def slug(name: str) -> str:
    """Return a checked name as a part of an id, which has no dots; different names stay different."""
    return name.replace(".", "_")


def display_text(text: str, limit: int = MAX_NAME_TEXT) -> str:
    """Return untrusted text for people: one line without control characters, of at most ``limit`` characters."""
    return shorten_middle(clean_cell(text).strip(), limit)


def state_text(text: str) -> bytes:
    """Return the payload of a state that is a text; Home Assistant refuses an empty one and one over 255 characters."""
    return display_text(text, MAX_STATE_TEXT).encode() or UNKNOWN


def state_number(value: float | None, digits: int = 1) -> bytes:
    """Return the payload of a state that is a number, rounded to ``digits`` decimals; None is unknown."""
    return UNKNOWN if value is None else f"{round(value, digits):g}".encode() if digits else f"{value:.0f}".encode()


def state_switch(*, is_on: bool) -> bytes:
    """Return the payload of a state that is on or off."""
    return b"ON" if is_on else b"OFF"
