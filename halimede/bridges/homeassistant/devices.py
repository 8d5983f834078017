"""The devices of Home Assistant as functions of what the bridge has received. Pure.

There is a device for each inference service, camera and node, and one for the system. Their ids are made from names, so
they survive restarts; names have no ``_``, which separates their levels here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from halimede.api import kind_of
from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.api.model import PLURAL as MODELS
from halimede.bridges.homeassistant.discovery import (
    UNKNOWN,
    DeviceState,
    Entity,
    display_text,
    slug,
    state_number,
    state_switch,
    state_text,
)
from halimede.bridges.homeassistant.system_view import SystemView, metric_of
from halimede.learning_loop.states import State
from halimede.messages import CameraStatus, NodeInfo, Presence, StatusDocument
from halimede.names import Key

#: states of a camera that are a problem, the worst first
CAMERA_PROBLEMS = ("failed", "gone", "stalled")
#: states of a learning loop in which its candidate replaces, or has replaced, the present model
ROLLING_OUT: tuple[State, ...] = ("Canary", "RolledOut")
#: content types of pictures, by their first bytes
PNG_BEGIN, PNG, JPEG = b"\x89PNG", "image/png", "image/jpeg"
#: characters of a digest that name a version without a name
SHORT_DIGEST = 12
#: options of an entity for technicians
DIAGNOSTIC = {"entity_category": "diagnostic"}
#: namespace that is not shown
DEFAULT_NAMESPACE = "default"
#: numbers of a service: id, name, metric of its status, factor, digits, and options
SERVICE_NUMBERS: tuple[tuple[str, str, str, float, int, Mapping[str, Any]], ...] = (
    (
        "upload_share", "Upload share", "uploadCloudRatio", 100, 1,
        {"unit_of_measurement": "%", "state_class": "measurement"},
    ),
    (
        "uploaded", "Uploaded", "uploadedBytes", 1, 0,
        {"unit_of_measurement": "B", "device_class": "data_size", "state_class": "total_increasing"},
    ),
    (
        "edge_p95", "Edge latency p95", "edgeLatencyP95Ms", 1, 1,
        {"unit_of_measurement": "ms", "device_class": "duration", "state_class": "measurement"},
    ),
    (
        "offload_p95", "Cloud latency p95", "offloadLatencyP95Ms", 1, 1,
        {"unit_of_measurement": "ms", "device_class": "duration", "state_class": "measurement"},
    ),
    ("queue", "Queue", "queued", 1, 0, {"unit_of_measurement": "frames", "state_class": "measurement"}),
    ("frames", "Frames", "inferenceNumber", 1, 0, {"unit_of_measurement": "frames", "state_class": "total_increasing"}),
)  # fmt: skip


class DeviceKey(NamedTuple):
    """The key of a device. Fields that its kind does not have are empty.

    ``plural``: of a service, the plural of the resource's kind. Only services and cameras have a ``namespace``.
    """

    kind: Literal["service", "camera", "node", "system"]
    namespace: str = ""
    name: str = ""
    plural: str = ""

    @property
    def id(self) -> str:
        """The id of the device in topics and documents: letters, digits, ``-`` and ``_``."""
        if self.kind == "system":
            return "system"
        kind = kind_of(self.plural).short_names[0] if self.plural else self.kind
        return "_".join(filter(None, (kind, self.namespace, slug(self.name))))


#: the key of the device of the whole system
SYSTEM = DeviceKey("system")


def service_key(key: Key) -> DeviceKey:
    """Return the key of the device of a service."""
    return DeviceKey("service", key.namespace, key.name, key.plural)


def camera_key(namespace: str, camera: str) -> DeviceKey:
    """Return the key of the device of a camera."""
    return DeviceKey("camera", namespace, camera)


def node_key(node: str) -> DeviceKey:
    """Return the key of the device of a node."""
    return DeviceKey("node", "", node)


def all_devices(view: SystemView) -> Iterator[DeviceKey]:
    """Yield the keys of all devices of a system."""
    yield SYSTEM
    yield from map(service_key, view.services.entries)
    yield from map(node_key, view.nodes.entries)
    cameras = [camera_key(namespace, camera) for namespace, camera, _ in view.cameras.entries]
    yield from dict.fromkeys(cameras + [camera_key(key.namespace, key.camera) for key in view.occupancy.keys])


def device_of(view: SystemView, key: DeviceKey, undelivered: Mapping[str, int]) -> DeviceState | None:
    """Return a device; None: there is none now. ``undelivered``: messages that Home Assistant missed, by reason."""
    if key.kind == "system":
        return _system(view, undelivered)
    if key.kind == "node":
        presence = view.nodes.entries.get(key.name)
        return _node(view, key, presence) if presence else None
    if key.kind == "camera":
        return _camera(view, key)
    document = view.services.entries.get(Key(key.plural, key.namespace, key.name))
    return _service(view, key, document) if document else None


def _title(kind: str, namespace: str, name: str) -> str:
    """Return the name of a device for people."""
    return f"{kind} {name}" if namespace in {"", DEFAULT_NAMESPACE} else f"{kind} {namespace}/{name}"


def _problem(*, is_problem: bool, attributes: Mapping[str, Any]) -> Entity:
    """Return the sensor that a device has a problem."""
    options = {"name": "Problem", "device_class": "problem"}
    return Entity("problem", "binary_sensor", options, state_switch(is_on=is_problem), attributes)


# --- services ---------------------------------------------------------------------------------------------------------


def _service(view: SystemView, key: DeviceKey, document: StatusDocument) -> DeviceState:
    """Return the device of a service."""
    resource, status = Key(key.plural, key.namespace, key.name), document.status
    condition = status.conditions[-1] if status.conditions else None
    attributes = {
        "phase": status.phase,
        "reason": condition.reason if condition else "",
        "message": display_text(condition.message, 1000) if condition else "",
        "overload": display_text(status.overload, 1000),
    }
    window = view.uploads.get(resource)
    rate = window.bytes_a_day if window else None
    entities = [
        _problem(is_problem=status.phase != "Running" or bool(status.overload), attributes=attributes),
        Entity("phase", "sensor", {"name": "Phase", **DIAGNOSTIC}, state_text(status.phase)),
        Entity(
            "bytes_a_day",
            "sensor",
            {"name": "Uploaded a day", "unit_of_measurement": "B/d", "state_class": "measurement"},
            state_number(rate, 0),
        ),
    ]
    for id_, name, metric, factor, digits, options in SERVICE_NUMBERS:
        value = metric_of(document, metric)
        state = state_number(None if value is None else value * factor, digits)
        entities.append(Entity(id_, "sensor", {"name": name, **options}, state))
    if key.plural == JOINT_INFERENCE:
        entities += [_picture(view, resource), *_budget(view, resource)]
    kind = kind_of(key.plural).kind
    return DeviceState(key.id, _title("service", key.namespace, key.name), kind, tuple(entities), via=SYSTEM.id)


def _picture(view: SystemView, service: Key) -> Entity:
    """Return the image of the last hard sample: a preview of at most 64 KiB."""
    sample = view.pictures.get(service)
    data = bytes(sample.data) if sample else None
    content_type = PNG if data and data.startswith(PNG_BEGIN) else JPEG
    options = {"name": "Last hard sample", "content_type": content_type}
    attributes = {
        "camera": sample.camera,
        "edge_label": display_text(sample.edge_label),
        "label": display_text(sample.label),
        "by": sample.by,
    } if sample else None  # fmt: skip
    # the attributes' topic is part of the document, which must not change with the first sample
    return Entity("hard_sample", "image", options, data, attributes or {"by": ""})


def _budget(view: SystemView, service: Key) -> Iterator[Entity]:
    """Yield the share of uploads that the service may have, with an operator's rights."""
    if not view.has_control or service in view.without_budget:
        return
    _, budget = view.budgets.get(service, (0, None))
    state = state_number(None if budget is None else budget * 100)
    options: dict[str, Any] = {"name": "Upload budget", "unit_of_measurement": "%"}
    if view.on_kubernetes:
        yield Entity("budget_value", "sensor", options, state)
        return
    options |= {"min": 0, "max": 100, "step": 0.1, "mode": "box"}
    yield Entity("budget", "number", options, state, has_command=True)


# --- nodes and cameras ------------------------------------------------------------------------------------------------


def _node(view: SystemView, key: DeviceKey, presence: Presence) -> DeviceState:
    """Return the device of a node."""
    trouble = display_text(presence.trouble, 1000)
    entities = [
        Entity(
            "online",
            "binary_sensor",
            {"name": "Online", "device_class": "connectivity"},
            state_switch(is_on=presence.online),
        ),
        _problem(
            is_problem=not presence.online or bool(trouble) or bool(presence.refused),
            attributes={"message": trouble or ("" if presence.online else "the node is offline")},
        ),
        *_operated_node(view, view.infos.get(key.name)),
    ]
    return DeviceState(key.id, f"node {key.name}", "node", tuple(entities), version=presence.version, via=SYSTEM.id)


def _operated_node(view: SystemView, info: NodeInfo | None) -> Iterator[Entity]:
    """Yield what an operator may read of a node and do with it."""
    if not view.has_control:
        return
    drained = UNKNOWN if info is None else state_switch(is_on=info.drained)
    if view.on_kubernetes:
        yield Entity("is_drained", "binary_sensor", {"name": "Drained"}, drained)
    else:
        yield Entity("drained", "switch", {"name": "Drained"}, drained, has_command=True)
    options = {"name": "Workers", "state_class": "measurement"}
    yield Entity("workers", "sensor", options, state_number(info.workers if info else None, 0))


def _camera(view: SystemView, key: DeviceKey) -> DeviceState | None:
    """Return the device of a camera; None: no process reports on it, and no service counts what is in its pictures."""
    statuses = [
        status
        for (namespace, camera, _), status in view.cameras.entries.items()
        if (namespace, camera) == (key.namespace, key.name)
    ]
    entities = [*_camera_state(statuses), *view.occupancy.entities(key.namespace, key.name)]
    if not entities:
        return None
    return DeviceState(key.id, _title("camera", key.namespace, key.name), "camera", tuple(entities), via=SYSTEM.id)


def _camera_state(statuses: list[CameraStatus]) -> Iterator[Entity]:
    """Yield what the processes that read a camera report; a worker that reads it well is enough."""
    if not statuses:
        return
    order = {state: number for number, state in enumerate(CAMERA_PROBLEMS)}
    best = max(statuses, key=lambda status: order.get(status.state, len(CAMERA_PROBLEMS))).without_secrets()
    attributes = {
        "camera_state": best.state,
        "reason": best.reason,
        "message": display_text(best.error, 1000),
        "source": display_text(best.source, 256),
        "width": best.width,
        "height": best.height,
    }
    yield _problem(is_problem=best.state in CAMERA_PROBLEMS, attributes=attributes)
    options = {"name": "Frame rate", "unit_of_measurement": "fps", "state_class": "measurement", **DIAGNOSTIC}
    yield Entity("frame_rate", "sensor", options, state_number(best.fps))


# --- the system -------------------------------------------------------------------------------------------------------


def _system(view: SystemView, undelivered: Mapping[str, int]) -> DeviceState:
    """Return the device of the system: its global manager, the bridge itself, and the roll-outs of Models."""
    manager = view.manager
    is_online = manager is not None and manager.online
    entities = [
        Entity(
            "manager",
            "binary_sensor",
            {"name": "Global manager", "device_class": "connectivity"},
            state_switch(is_on=is_online),
        ),
        Entity(
            "undelivered",
            "sensor",
            {"name": "Undelivered messages", "state_class": "total_increasing", **DIAGNOSTIC},
            state_number(sum(undelivered.values()), 0),
            dict(undelivered),
        ),
        Entity("last_problem", "sensor", {"name": "Last problem", **DIAGNOSTIC}, state_text(view.problem or "none")),
    ]
    entities += [
        _rollout(view, key, document) for key, document in sorted(view.models.entries.items()) if key.plural == MODELS
    ]
    version = manager.version if manager else ""
    return DeviceState(SYSTEM.id, "halimede", "system", tuple(entities), version=version)


def _rollout(view: SystemView, key: Key, document: StatusDocument) -> Entity:
    """Return the update entity of a Model: the version that all its nodes have had last, and the one to come."""
    status = document.status
    installed = status.versions[0].version if status.versions else ""
    latest = installed
    if status.model and status.versions and status.model.digest not in {"", status.versions[0].digest}:
        latest = status.model.digest[:SHORT_DIGEST]
    condition = status.conditions[-1] if status.conditions else None
    summary, is_rolling_out = condition.message if condition else "", status.phase == "Pending"
    for loop in _loops(view, key):
        if loop.get("state") in ROLLING_OUT and loop.get("version"):
            latest, summary = str(loop["version"]), str(loop.get("message", ""))
            installed = str(loop.get("base") or installed) if loop["state"] == "Canary" else installed
            is_rolling_out = is_rolling_out or loop["state"] == "Canary"
    state: dict[str, Any] = {
        "installed_version": display_text(installed) or "none",
        "latest_version": display_text(latest) or display_text(installed) or "none",
        "title": f"Model {key.name}",
        "release_summary": display_text(summary, 250),
        "in_progress": is_rolling_out,
    }
    name = _title("Model", key.namespace, key.name)
    return Entity(f"model_{key.namespace}_{slug(key.name)}", "update", {"name": name}, msgspec.json.encode(state))


def _loops(view: SystemView, model: Key) -> Iterator[Mapping[str, Any]]:
    """Yield the states of the learning loops that edit a Model."""
    for key, document in view.models.entries.items():
        loop = document.status.loop
        if loop and key.namespace == model.namespace and loop.get("model") == model.name:
            yield loop
