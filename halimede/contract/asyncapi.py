"""Describes the contract to tools: JSON schemas of all bodies, and an AsyncAPI 3 document.

Source: AsyncAPI specification 3.0.0; bindings for MQTT 0.2.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from halimede import __version__
from halimede.contract import bodies
from halimede.topic import BodyEncoding, Role, Topic

#: msgspec's form of binary fields in JSON, and so in a JSON schema
BINARY = {"type": "string", "contentEncoding": "base64"}
#: media types of bodies by encoding
CONTENT_TYPES = {
    BodyEncoding.JSON: "application/json",
    BodyEncoding.MSGPACK: "application/msgpack",
    BodyEncoding.BYTES: "application/octet-stream",
}
#: the roles that clients of users have, which need not be programs of halimede
USER_ROLES = frozenset({Role.CAMERA, Role.CONSUMER, Role.OPERATOR})
#: address of a type's schema in the AsyncAPI document
COMPONENTS = "#/components/schemas/{name}"


def schema(topic: Topic[Any]) -> dict[str, Any]:
    """Return the JSON schema of a topic's body. Binary fields are base64, the form of bytes in JSON."""
    body = msgspec.json.schema(topic.message, schema_hook=_binary_schema)
    _describe(body.get("$defs", {}), [topic.message])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tidy(body)}


def document(contract: Sequence[Topic[Any]]) -> dict[str, Any]:
    """Return the AsyncAPI document of the topics: a channel for each topic, and the operations of users' clients."""
    kinds = [topic.message for topic in contract]
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=_binary_schema, ref_template=COMPONENTS)
    _describe(components, kinds)
    payloads = dict(zip((topic.id for topic in contract), schemas, strict=True))
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "halimede",
            "version": __version__,
            "description": "Edge-cloud collaborative inference over MQTT v5. topics.md describes the same for people.",
        },
        "defaultContentType": "application/json",
        "servers": {"local": {"host": "127.0.0.1:1883", "protocol": "mqtt", "protocolVersion": "5"}},
        "channels": {topic.id: _channel(topic) for topic in contract},
        "operations": {name: body for topic in contract for name, body in _operations(topic).items()},
        "components": {
            "messages": {topic.id: _message(topic, _tidy(payloads[topic.id])) for topic in contract},
            "schemas": _tidy(components),
        },
    }


def _channel(topic: Topic[Any]) -> dict[str, Any]:
    """Return the channel of a topic: its address, meaning, message and names."""
    body: dict[str, Any] = {
        "address": topic.template,
        "description": topic.doc,
        "messages": {topic.id: {"$ref": f"#/components/messages/{topic.id}"}},
    }
    if topic.fields:
        body["parameters"] = {name: {"description": f"the name of the {name}"} for name in topic.fields}
    return body


def _message(topic: Topic[Any], payload: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a topic with the schema of its body."""
    return {"name": topic.id, "contentType": CONTENT_TYPES[topic.encoding], "payload": payload}


def _operations(topic: Topic[Any]) -> dict[str, Any]:
    """Return the operations of users' clients on a topic, by name."""
    operations = {}
    for verb, action, roles in (("publish", "send", topic.publishers), ("subscribe", "receive", topic.subscribers)):
        if users := [role.value for role in roles if role in USER_ROLES]:
            operations[f"{verb}-{topic.id}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{topic.id}"},
                "summary": f"for {' and '.join(users)}",
                "bindings": {"mqtt": {"qos": topic.qos, "retain": topic.retain, "bindingVersion": "0.2.0"}},
            }
    return operations


def _describe(schemas: dict[str, Any], kinds: Sequence[type]) -> None:
    """Add the comments of fields to the schemas of their types, in place."""
    for kind in bodies.message_types(kinds):
        properties = schemas.get(kind.__name__, {}).get("properties", {})
        for field in bodies.fields(kind):
            if field.doc and field.name in properties:
                properties[field.name] = {"description": field.doc, **properties[field.name]}


def _binary_schema(kind: type) -> dict[str, Any]:
    """Return the schema of a type that msgspec has none for.

    Raises NotImplementedError for others than binary fields.
    """
    if kind is memoryview:
        return dict(BINARY)
    raise NotImplementedError(kind)


def _tidy(value: Any) -> Any:
    """Return a schema without the indentation and markup of docstrings, and with a description of base64 fields."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    tidied = {key: _tidy(item) for key, item in value.items()}
    if isinstance(value.get("description"), str):
        tidied["description"] = " ".join(inspect.cleandoc(value["description"]).replace("``", "`").split())
    if value.get("contentEncoding") == "base64":
        tidied["description"] = "binary: raw bytes in the body, base64 only where this schema is applied to JSON"
    return tidied
