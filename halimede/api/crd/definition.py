"""A kind's CustomResourceDefinition: names, columns of ``kubectl get``, the status subresource, and the schema."""

from __future__ import annotations

from typing import Any

from halimede.api.base import Kind, kinds
from halimede.api.crd.structure import structure, text
from halimede.messages import Status

#: a Service's name, which is stricter than a resource's
SERVICE_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
CATEGORIES = ["sedna", "halimede"]


def definitions() -> dict[str, dict[str, Any]]:
    """Return the manifest of each kind under the name of its file."""
    made = [definition(kind) for kind in kinds()]
    return {f"{body['spec']['group']}_{body['spec']['names']['plural']}.yaml": body for body in made}


def definition(kind: Kind) -> dict[str, Any]:
    """Return a kind's CustomResourceDefinition."""
    group, version = kind.api_version.split("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}", "labels": {"app.kubernetes.io/part-of": "halimede"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": list(kind.short_names),
                "categories": list(CATEGORIES),
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": c.name, "type": c.type, "jsonPath": c.path, "description": c.description}
                        | ({"priority": 1} if c.wide else {})
                        for c in kind.columns
                    ],
                    "schema": {"openAPIV3Schema": _resource(kind)},
                }
            ],
        },
    }


def _resource(kind: Kind) -> dict[str, Any]:
    about = text(kind.spec.__doc__ or "")
    return {
        "description": about,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Group and version of the resource.", "type": "string"},
            "kind": {"description": "Kind of the resource.", "type": "string"},
            "metadata": _metadata(kind),
            "spec": {"description": "What is asked for.", **structure(kind.spec)},
            "status": {"description": "What GM knows of it. Only GM writes it.", **structure(Status)},
        },
    }


def _metadata(kind: Kind) -> dict[str, Any]:
    """Kubernetes knows metadata itself and lets a schema speak of the name alone."""
    if not kind.name_limit:
        return {"type": "object"}
    name = {
        "description": "Its name; workers, a Service and labels are named after it.",
        "type": "string",
        "maxLength": kind.name_limit,
        "pattern": SERVICE_NAME,
    }
    return {"type": "object", "properties": {"name": name}}
