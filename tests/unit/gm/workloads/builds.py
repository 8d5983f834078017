"""What GM makes of a service: its objects, and its pods' specs and environments."""

from __future__ import annotations

from typing import Any

from halimede.api import Resource
from services.gm.cluster.port import Ref
from services.gm.workloads import object_names
from services.gm.workloads.deployments import Built, build
from services.gm.workloads.diff import Remove, differences
from tests.unit.gm.workloads.world import SECRETS, SETTINGS, UID, known, service


def made(of: Resource[Any], *models: Resource[Any], secrets: Any = SECRETS, settings: Any = SETTINGS) -> Built:
    return build(of, known(*models), secrets, settings)


def built(of: Resource[Any] | None = None, *models: Resource[Any], secrets: Any = None, **more: Any) -> Built:
    """Build the objects of a service whose session has its Secret."""
    of = of or service()
    sessions = {object_names.session_secret_name(of): {"ownerReferences": [object_names.owner(of)]}}
    return made(of, *models, secrets={**SECRETS, **sessions} if secrets is None else secrets, **more)


def objects(of: Built) -> dict[str, dict[str, Any]]:
    """Return the objects by name; nothing may be wrong."""
    assert of.problems == ()
    return {f"{body['kind']}/{body['metadata']['name']}": body for body in of.objects}


def pod(of: Built, role: str = "edge") -> dict[str, Any]:
    """Return the pod's spec of a role."""
    spec: dict[str, Any] = objects(of)[f"Deployment/helmet-deployment-{role}"]["spec"]["template"]["spec"]
    return spec


def environment(of: Built, role: str = "edge") -> dict[str, Any]:
    """Return the environment of a role's worker: values, or where they are from."""
    variables = pod(of, role)["containers"][0]["env"]
    assert len({v["name"] for v in variables}) == len(variables), "a name stands twice"
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in variables}


def there(of: Built) -> dict[Ref, dict[str, Any]]:
    """What an API server would have of it."""
    return {
        Ref.of(body): {**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}} for body in of.objects
    }


def removed(of: Built, existing: dict[Ref, dict[str, Any]]) -> set[str]:
    return {action.ref.name for action in differences(of, existing, UID) if isinstance(action, Remove)}


def reasons(of: Built) -> list[str]:
    return [problem.reason for problem in of.problems]
