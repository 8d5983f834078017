"""A custom resource of the tests' own, and short ways to write objects."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.apiserver import Api

Body = dict[str, Any]
GROUP = "test.halimede.io"
THING = f"things.{GROUP}/v1"
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_PART = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string", "maxLength": 8}, "weight": {"type": "integer", "default": 5}},
}
_SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 100},
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
        "host": {"type": "string", "pattern": "^[a-z]+$"},
        "port": {"x-kubernetes-int-or-string": True},
        "note": {"type": "string", "nullable": True},
        "parts": {"type": "array", "maxItems": 3, "items": _PART},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "template": {**_ANY, "properties": {"node": {"type": "string"}}},
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        "phase": {"type": "string"},
        "active": {"type": "integer"},
        "conditions": {
            "type": "array",
            "items": {"type": "object", "properties": {"type": {"type": "string"}, "status": {"type": "string"}}},
        },
    },
}
_COLUMNS = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Active", "type": "integer", "jsonPath": ".status.active"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
DEFINITION: Body = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"things.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things", "singular": "thing", "shortNames": ["th"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": _COLUMNS,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _STATUS}}},
            }
        ],
    },
}


def thing(name: str, **spec: Any) -> Body:
    meta = {"name": name}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": meta, "spec": {"size": 1, **spec}}


async def made(api: Api, name: str = "one", **spec: Any) -> Body:
    """Create a Thing in the test's namespace."""
    await api.install(DEFINITION)
    return await api.client.create(THING, api.namespace, thing(name, **spec))


def config_map(name: str, *, labels: dict[str, str] | None = None, **data: str) -> Body:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def deployment(name: str, /, *, replicas: int = 1, **container: Any) -> Body:
    labels = {"app": name}
    containers = [{"name": "main", "image": "example.io/worker:1", **container}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def pod(name: str, **spec: Any) -> Body:
    """Return a Pod that no scheduler takes."""
    containers = [{"name": "main", "image": "example.io/w:1"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, "schedulerName": "nobody", **spec}}


def owned(body: Body, owner: Body, api_version: str, kind: str) -> Body:
    meta = owner["metadata"]
    reference = {"apiVersion": api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [reference]}}
