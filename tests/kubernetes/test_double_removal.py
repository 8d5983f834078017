"""Deleting: preconditions, finalizers, a pod's grace, owners."""

from __future__ import annotations

import asyncio

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import RefusedError, path
from tests.kubernetes.things import GROUP, THING, config_map, made, owned, pod
from tests.waiting import patience


async def gone(api: Api, kind: str, name: str) -> None:
    """Wait until an object is gone."""
    async with asyncio.timeout(patience(30.0)):
        while await api.client.find(kind, api.namespace, name) is not None:
            await asyncio.sleep(0.05)


async def test_a_deletion_answers_with_what_was_deleted(api: Api) -> None:
    body = await made(api)
    answer = await api.client.delete(THING, api.namespace, "one")
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "one", "group": GROUP, "kind": "things", "uid": body["metadata"]["uid"]}
    with pytest.raises(RefusedError) as refused:
        await api.client.delete(THING, api.namespace, "one")
    assert refused.value.code == 404


async def test_a_deletion_may_name_the_object_that_it_means(api: Api) -> None:
    body = await made(api)
    for wrong in ({"uid": "00000000-0000-4000-8000-000000000000"}, {"resourceVersion": "1"}):
        with pytest.raises(RefusedError) as refused:
            await api.client.delete(THING, api.namespace, "one", {"preconditions": wrong})
        assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    right = {"uid": body["metadata"]["uid"], "resourceVersion": body["metadata"]["resourceVersion"]}
    await api.client.delete(THING, api.namespace, "one", {"preconditions": right})
    assert await api.client.find(THING, api.namespace, "one") is None


async def test_an_object_with_a_finalizer_stays_until_it_is_taken_off(api: Api) -> None:
    await made(api)
    await api.client.patch(THING, api.namespace, "one", {"metadata": {"finalizers": ["halimede.io/test"]}})
    body = await api.client.delete(THING, api.namespace, "one")
    meta = body["metadata"]
    assert meta["deletionTimestamp"]
    assert (meta["generation"], meta["deletionGracePeriodSeconds"]) == (2, 0)
    again = await api.client.delete(THING, api.namespace, "one")
    assert again["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["halimede.io/test", "halimede.io/more"]}}
    with pytest.raises(RefusedError) as refused:
        await api.client.patch(THING, api.namespace, "one", more)
    assert refused.value.code == 422
    assert (
        "no new finalizers can be added if the object is being deleted" in refused.value.causes["metadata.finalizers"]
    )
    changed = await api.client.patch(THING, api.namespace, "one", {"status": {"phase": "Ending"}}, "status")
    assert changed["status"] == {"phase": "Ending"}
    await api.client.patch(THING, api.namespace, "one", {"metadata": {"finalizers": None}})
    assert await api.client.find(THING, api.namespace, "one") is None


async def test_a_deletion_cannot_be_taken_back(api: Api) -> None:
    await made(api)
    await api.client.patch(THING, api.namespace, "one", {"metadata": {"finalizers": ["halimede.io/test"]}})
    await api.client.delete(THING, api.namespace, "one")
    body = await api.client.patch(THING, api.namespace, "one", {"metadata": {"deletionTimestamp": None}})
    assert body["metadata"]["deletionTimestamp"]
    await api.client.patch(THING, api.namespace, "one", {"metadata": {"finalizers": []}})
    assert await api.client.find(THING, api.namespace, "one") is None


async def test_finalizers_are_qualified_names(api: Api) -> None:
    await api.client.create("ConfigMap", api.namespace, config_map("one"))
    with pytest.raises(RefusedError) as refused:
        await api.client.patch("ConfigMap", api.namespace, "one", {"metadata": {"finalizers": ["mine"]}})
    assert refused.value.code == 422


async def test_a_pod_on_a_node_waits_for_its_kubelet(api: Api) -> None:
    await api.client.create("Pod", api.namespace, pod("here", nodeName="some-node"))
    await api.client.create("Pod", api.namespace, pod("nowhere"))
    await api.client.delete("Pod", api.namespace, "nowhere")
    assert await api.client.find("Pod", api.namespace, "nowhere") is None
    body = await api.client.delete("Pod", api.namespace, "here")
    assert (body["kind"], body["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 30)
    assert await api.client.find("Pod", api.namespace, "here") is not None
    await api.client.delete("Pod", api.namespace, "here", {"gracePeriodSeconds": 0})
    assert await api.client.find("Pod", api.namespace, "here") is None


async def test_many_are_deleted_by_their_labels(api: Api) -> None:
    for name, color in (("a", "red"), ("b", "red"), ("c", "blue")):
        await api.client.create("ConfigMap", api.namespace, config_map(name, labels={"color": color}))
    await api.client.request("DELETE", path("ConfigMap", api.namespace), labelSelector="color=red")
    left = {each["metadata"]["name"] for each in (await api.client.list("ConfigMap", api.namespace))["items"]}
    assert left & {"a", "b", "c"} == {"c"}


async def test_dependents_follow_their_owner(api: Api) -> None:
    owner = await made(api)
    child = owned(config_map("child"), owner, f"{GROUP}/v1", "Thing")
    body = await api.client.create("ConfigMap", api.namespace, child)
    grandchild = owned(config_map("grandchild"), body, "v1", "ConfigMap")
    await api.client.create("ConfigMap", api.namespace, grandchild)
    await api.client.create("ConfigMap", api.namespace, config_map("stranger"))
    async with api.player():
        await asyncio.sleep(0.3)
        assert await api.client.find("ConfigMap", api.namespace, "child") is not None
        await api.client.delete(THING, api.namespace, "one")
        await gone(api, "ConfigMap", "child")
        await gone(api, "ConfigMap", "grandchild")
    assert await api.client.find("ConfigMap", api.namespace, "stranger") is not None


async def test_a_dependent_of_nobody_does_not_stay(api: Api) -> None:
    owner = await made(api)
    await api.client.delete(THING, api.namespace, "one")
    again = await made(api)
    assert again["metadata"]["uid"] != owner["metadata"]["uid"]
    async with api.player():
        await api.client.create("ConfigMap", api.namespace, owned(config_map("late"), owner, f"{GROUP}/v1", "Thing"))
        await gone(api, "ConfigMap", "late")
