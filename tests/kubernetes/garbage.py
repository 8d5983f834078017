"""The garbage collector and the namespace controller, for a bare API server: through HTTP, as everything here."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.kubernetes.client import Body, Client, RefusedError, path

#: kinds that own or are owned in tests
DEPENDENTS = ("Deployment", "Service", "HorizontalPodAutoscaler", "Ingress", "Pod", "Secret", "ConfigMap")


async def collect(client: Client, namespace: str) -> int:
    """Delete what no living object owns any more; return how many."""
    deleted = 0
    known: dict[tuple[str, str, str], str | None] = {}
    for kind in DEPENDENTS:
        for body in (await client.list(kind, namespace))["items"]:
            meta = body["metadata"]
            owners = meta.get("ownerReferences", ())
            if not owners or meta.get("deletionTimestamp"):
                continue
            if not [owner for owner in owners if await _uid(client, namespace, owner, known) == owner["uid"]]:
                with suppress(RefusedError):
                    await client.delete(kind, namespace, meta["name"], {"preconditions": {"uid": meta["uid"]}})
                    deleted += 1
    return deleted


async def _uid(
    client: Client, namespace: str, owner: Body, known: dict[tuple[str, str, str], str | None]
) -> str | None:
    key = (owner["apiVersion"], owner["kind"], owner["name"])
    if key not in known:
        root = f"/apis/{owner['apiVersion']}" if "/" in owner["apiVersion"] else f"/api/{owner['apiVersion']}"
        resources = (await client.request("GET", root))["resources"]
        found = next(each for each in resources if each["kind"] == owner["kind"] and "/" not in each["name"])
        where = f"/namespaces/{namespace}" if found["namespaced"] else ""
        try:
            body = await client.request("GET", f"{root}{where}/{found['name']}/{owner['name']}")
            known[key] = body["metadata"]["uid"]
        except RefusedError as refused:
            if refused.code != 404:
                raise
            known[key] = None
    return known[key]


async def empty(client: Client, namespace: str) -> None:
    """Delete a namespace and all that is in it, finalizers or not."""
    await client.delete("Namespace", None, namespace)
    for root, resource in await _resources(client):
        at = f"{root}/namespaces/{namespace}/{resource}"
        with suppress(RefusedError):
            await client.request("DELETE", at, {"gracePeriodSeconds": 0})
            for body in (await client.request("GET", at))["items"]:
                with suppress(RefusedError):
                    name = body["metadata"]["name"]
                    content = "application/merge-patch+json"
                    await client.request("PATCH", f"{at}/{name}", {"metadata": {"finalizers": None}}, content=content)
    body = await client.get("Namespace", None, namespace)
    body["spec"]["finalizers"] = []
    await client.request("PUT", path("Namespace", None, namespace, "finalize"), body)


async def _resources(client: Client) -> list[tuple[str, str]]:
    groups: list[dict[str, Any]] = (await client.request("GET", "/apis"))["groups"]
    roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found = []
    for root in roots:
        try:
            resources = (await client.request("GET", root))["resources"]
        except RefusedError as refused:
            if refused.code != 404:
                raise
            continue  # its definition has just been deleted
        here = [each for each in resources if each["namespaced"] and {"list", "deletecollection"} <= set(each["verbs"])]
        found += [(root, each["name"]) for each in here]
    return found
