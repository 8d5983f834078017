"""Deleting: finalizers, a pod's grace, owners, namespaces."""

from __future__ import annotations

import asyncio

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import invalid_fields, refusal
from tests.kubernetes.things import GROUP, THING, config_map, made, owned, pod


async def test_a_deletion_answers_with_what_was_deleted(api: Api) -> None:
    body = await made(api)
    answer = await api.client.delete(THING, api.namespace, "one")
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "one", "group": GROUP, "kind": "things", "uid": body["metadata"]["uid"]}
    assert (await refusal(api.client.delete(THING, api.namespace, "one"))).code == 404


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
    fields = await invalid_fields(api.client.patch(THING, api.namespace, "one", more))
    assert "no new finalizers can be added if the object is being deleted" in fields["metadata.finalizers"]
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
    await invalid_fields(api.client.patch("ConfigMap", api.namespace, "one", {"metadata": {"finalizers": ["mine"]}}))


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


async def test_a_dependent_of_nobody_does_not_stay(api: Api) -> None:
    owner = await made(api)
    await api.client.delete(THING, api.namespace, "one")
    again = await made(api)
    assert again["metadata"]["uid"] != owner["metadata"]["uid"]
    async with api.player():
        await api.client.create("ConfigMap", api.namespace, owned(config_map("late"), owner, f"{GROUP}/v1", "Thing"))
        await api.until_gone("ConfigMap", "late")


async def test_a_namespace_goes_with_all_that_is_in_it(api: Api) -> None:
    if not api.managed:
        pytest.skip("needs a namespace controller: a bare API server has none")
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
