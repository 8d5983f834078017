"""Patches: null deletes, what is refused, and the forms that only built-in kinds take."""

from __future__ import annotations

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import refusal
from tests.kubernetes.things import THING, deployment, made

JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


async def test_null_deletes_and_objects_are_merged(api: Api) -> None:
    await made(api, host="abc", labels={"a": "1", "b": "2"})
    patch = {"spec": {"host": None, "labels": {"a": None, "c": "3"}}}
    body = await api.client.patch(THING, api.namespace, "one", patch)
    assert body["spec"] == {"size": 1, "mode": "fast", "labels": {"b": "2", "c": "3"}}


async def test_a_strategic_merge_is_for_built_in_kinds(api: Api) -> None:
    await made(api)
    refused = await refusal(api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}}, content=STRATEGIC))
    assert refused.answer == (415, "UnsupportedMediaType")
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    await api.client.create("Deployment", api.namespace, deployment("one", env=env))
    change = [{"name": "A", "value": "3"}, {"name": "B", "$patch": "delete"}, {"name": "C", "value": "4"}]
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": change}]}}}}
    body = await api.client.patch("Deployment", api.namespace, "one", patch, content=STRATEGIC)
    container = body["spec"]["template"]["spec"]["containers"][0]
    assert {each["name"]: each["value"] for each in container["env"]} == {"A": "3", "C": "4"}
    assert container["image"] == "example.io/worker:1"


async def test_the_stale_version_of_a_patch_is_a_conflict_even_if_it_changes_nothing(api: Api) -> None:
    old = await made(api)
    await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
    patch = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "spec": {"size": 2}}
    assert (await refusal(api.client.patch(THING, api.namespace, "one", patch))).code == 409
