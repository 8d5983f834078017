"""What the controller manager does with what is deleted: on the double, and on a whole cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body, refusal
from tests.kubernetes.things import GROUP, THING, config_map, made, owned
from tests.waiting import eventually


async def family(api: Api) -> Body:
    """Make a Thing that owns a ConfigMap; skip where nobody collects garbage."""
    if not api.managed:
        pytest.skip("needs a garbage collector that knows policies: a bare API server has none")
    owner = await made(api)
    await api.client.create("ConfigMap", api.namespace, owned(config_map("child"), owner, f"{GROUP}/v1", "Thing"))
    return owner


async def test_in_the_foreground_dependents_go_first(api: Api) -> None:
    await family(api)
    await api.client.patch("ConfigMap", api.namespace, "child", {"metadata": {"finalizers": ["halimede.io/test"]}})
    body = await api.client.delete(THING, api.namespace, "one", {"propagationPolicy": "Foreground"})
    assert body["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def is_deleted() -> bool:
        return "deletionTimestamp" in (await api.client.get("ConfigMap", api.namespace, "child"))["metadata"]

    await eventually(is_deleted, 60.0)
    assert await api.client.find(THING, api.namespace, "one") is not None
    await api.client.patch("ConfigMap", api.namespace, "child", {"metadata": {"finalizers": None}})
    await api.until_gone("ConfigMap", "child")
    await api.until_gone(THING, "one")


async def test_orphans_stay_without_their_owner(api: Api) -> None:
    await family(api)
    await api.client.delete(THING, api.namespace, "one", propagationPolicy="Orphan")
    await api.until_gone(THING, "one")
    child = await api.client.get("ConfigMap", api.namespace, "child")
    assert "ownerReferences" not in child["metadata"]


async def test_of_two_owners_one_is_enough(api: Api) -> None:
    first = await family(api)
    second = await made(api, "two")
    references = [
        {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "name": each["metadata"]["name"], "uid": each["metadata"]["uid"]}
        for each in (first, second)
    ]
    await api.client.patch("ConfigMap", api.namespace, "child", {"metadata": {"ownerReferences": references}})
    await api.client.delete(THING, api.namespace, "one")
    await asyncio.sleep(0.5)
    assert await api.client.find("ConfigMap", api.namespace, "child") is not None
    await api.client.delete(THING, api.namespace, "two")
    await api.until_gone("ConfigMap", "child")


async def test_a_namespace_goes_with_all_that_is_in_it(api: Api) -> None:
    await family(api)
    other = await api.new_namespace()
    await api.client.create("ConfigMap", other, {**config_map("held"), "metadata": {
        "name": "held", "finalizers": ["halimede.io/test"]}})  # fmt: skip
    body = await api.client.delete("Namespace", None, other)
    assert body["status"]["phase"] == "Terminating"
    refused = await refusal(api.client.create("ConfigMap", other, config_map("late")))
    assert refused.code == 403
    assert refused.status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await asyncio.sleep(0.3)
    assert await api.client.find("Namespace", None, other) is not None
    await api.client.patch("ConfigMap", other, "held", {"metadata": {"finalizers": None}})
    await api.until_gone("Namespace", other, None)
