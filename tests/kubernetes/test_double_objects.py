"""Creating and replacing: identity, versions, generations, conflicts, and what a write leaves alone."""

from __future__ import annotations

import re

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import invalid_fields, refusal
from tests.kubernetes.things import DEFINITION, THING, config_map, deployment, made, thing


async def test_nothing_is_created_in_a_namespace_that_does_not_exist(api: Api) -> None:
    refused = await refusal(api.client.create("ConfigMap", "there-is-none", config_map("one")))
    assert refused.answer == (404, "NotFound")
    assert refused.status["message"] == 'namespaces "there-is-none" not found'


async def test_body_and_path_must_agree(api: Api) -> None:
    body = await made(api)
    other = {**body, "metadata": {**body["metadata"], "namespace": "default"}}
    assert (await refusal(api.client.replace(THING, api.namespace, other))).code == 400
    assert (await refusal(api.client.patch(THING, api.namespace, "one", {"metadata": {"name": "two"}}))).code == 400
    await invalid_fields(api.client.create(THING, api.namespace, {**thing("x"), "kind": "Other"}))
    for wrong in ({"apiVersion": "x/v1"}, {"kind": ""}):
        assert (await refusal(api.client.create(THING, api.namespace, {**thing("x"), **wrong}))).code == 400
    refused = await refusal(api.client.create("ConfigMap", api.namespace, {**config_map("x"), "kind": "Secret"}))
    assert refused.code == 400


async def test_only_a_changed_spec_counts_as_a_generation(api: Api) -> None:
    await made(api)
    for patch, subresource, generation in (
        ({"metadata": {"labels": {"a": "b"}}}, "", 1),
        ({"status": {"phase": "x"}}, "status", 1),
        ({"spec": {"size": 2}}, "", 2),
        ({"metadata": {"generation": 9}}, "", 2),
    ):
        body = await api.client.patch(THING, api.namespace, "one", patch, subresource)
        assert body["metadata"]["generation"] == generation


async def test_a_write_that_changes_nothing_has_no_new_version(api: Api) -> None:
    body = await made(api)
    version = body["metadata"]["resourceVersion"]
    assert (await api.client.replace(THING, api.namespace, body))["metadata"]["resourceVersion"] == version
    same = await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 1}})
    assert same["metadata"]["resourceVersion"] == version


async def test_a_stale_version_is_a_conflict(api: Api) -> None:
    old = await made(api)
    await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
    stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    for attempt in (
        api.client.replace(THING, api.namespace, {**old, "spec": {"size": 3}}),
        api.client.patch(THING, api.namespace, "one", {**stale, "spec": {"size": 3}}),
        api.client.patch(THING, api.namespace, "one", {**stale, "status": {"phase": "x"}}, "status"),
    ):
        refused = await refusal(attempt)
        assert refused.answer == (409, "Conflict")
        assert "the object has been modified; please apply your changes to the latest version" in str(refused)


async def test_a_custom_resource_is_replaced_only_with_its_version(api: Api) -> None:
    await made(api)
    refused = await refusal(api.client.replace(THING, api.namespace, thing("one", size=3)))
    assert refused.code == 422
    # how the zero is written depends on the server's version
    said = r"metadata\.resourceVersion: Invalid value: 0(x0)?: must be specified for an update"
    assert re.search(said, str(refused))
    await api.client.create("ConfigMap", api.namespace, config_map("one", a="b"))
    assert (await api.client.replace("ConfigMap", api.namespace, config_map("one", a="c")))["data"] == {"a": "c"}


async def test_another_uid_is_another_object(api: Api) -> None:
    body = await made(api)
    wrong = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}}
    other = {**body, "metadata": {**body["metadata"], **wrong["metadata"]}}
    assert (await refusal(api.client.replace(THING, api.namespace, other))).answer == (409, "Conflict")
    fields = await invalid_fields(api.client.patch(THING, api.namespace, "one", {**wrong, "spec": {"size": 3}}))
    assert fields["metadata.uid"].endswith("field is immutable")
    accepted = await api.client.patch(THING, api.namespace, "one", {**wrong, "status": {"phase": "x"}}, "status")
    assert accepted["metadata"]["uid"] == body["metadata"]["uid"]


async def test_status_and_the_rest_are_written_apart(api: Api) -> None:
    await api.install(DEFINITION)
    body = await api.client.create(THING, api.namespace, {**thing("one"), "status": {"phase": "mine"}})
    assert "status" not in body
    both = {"spec": {"size": 7}, "status": {"phase": "a"}}
    body = await api.client.patch(THING, api.namespace, "one", both, "status")
    assert (body["spec"]["size"], body["status"]) == (1, {"phase": "a"})
    body = await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 7}, "status": {"phase": "b"}})
    assert (body["spec"]["size"], body["status"]) == (7, {"phase": "a"})
    assert (await api.client.get(THING, api.namespace, "one/status"))["status"] == {"phase": "a"}


async def test_a_deployments_status_is_apart_too(api: Api) -> None:
    await api.client.create("Deployment", api.namespace, deployment("one"))
    status = {"status": {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1}}
    body = await api.client.patch("Deployment", api.namespace, "one", status, "status")
    assert body["status"]["replicas"] == 1
    assert "readyReplicas" not in body["status"]
    both = {"status": {"replicas": 5}, "spec": {"replicas": 2}}
    body = await api.client.patch("Deployment", api.namespace, "one", both)
    assert (body["status"]["replicas"], body["spec"]["replicas"], body["metadata"]["generation"]) == (1, 2, 2)
