"""Who may do what: tokens, roles, and the words of a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Client, RefusedError
from tests.kubernetes.things import DEFINITION, GROUP, THING, made, thing


@asynccontextmanager
async def somebody(api: Api, *rules: dict[str, Any]) -> AsyncIterator[Client]:
    """A client with no more than these rules."""
    await api.install(DEFINITION)
    user = await api.user("bob", rules)
    async with api.as_somebody(user.token) as client:
        yield client


def rule(*verbs: str, resources: tuple[str, ...] = ("things",), **more: Any) -> dict[str, Any]:
    """Return a rule on Things."""
    return {"apiGroups": [GROUP], "resources": list(resources), "verbs": list(verbs), **more}


async def test_a_token_that_is_none_is_not_let_in(api: Api) -> None:
    async with api.as_somebody("wrong") as client:
        with pytest.raises(RefusedError) as refused:
            await client.list("ConfigMap", api.namespace)
    assert (refused.value.code, refused.value.reason) == (401, "Unauthorized")


async def test_nobody_may_do_nothing(api: Api) -> None:
    async with api.as_somebody(None) as client:
        with pytest.raises(RefusedError) as refused:
            await client.list("ConfigMap", api.namespace)
    assert refused.value.code in {401, 403}


async def test_verbs_and_resources_are_told_apart(api: Api) -> None:
    await made(api)
    async with somebody(api, rule("get", "list", "patch")) as client:
        assert (await client.get(THING, api.namespace, "one"))["metadata"]["name"] == "one"
        assert len((await client.list(THING))["items"]) >= 1
        await client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
        for attempt in (
            client.create(THING, api.namespace, thing("two")),
            client.patch(THING, api.namespace, "one", {"status": {"phase": "x"}}, "status"),
            client.delete(THING, api.namespace, "one"),
            client.list("ConfigMap", api.namespace),
        ):
            with pytest.raises(RefusedError) as refused:
                await attempt
            assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
        with pytest.raises(RefusedError) as refused:
            async with client.watch(THING, api.namespace):
                pass
        assert 'cannot watch resource "things" in API group' in str(refused.value)


async def test_a_refusal_says_who_what_and_where(api: Api) -> None:
    await made(api)
    async with somebody(api, rule("get")) as client:
        with pytest.raises(RefusedError) as refused:
            await client.patch(THING, api.namespace, "one", {"status": {}}, "status")
        said = refused.value.status["message"]
        assert said.startswith(f'things.{GROUP} "one" is forbidden: User "system:serviceaccount:default:bob-')
        assert said.endswith(
            f'cannot patch resource "things/status" in API group "{GROUP}" in the namespace "{api.namespace}"'
        )
        with pytest.raises(RefusedError) as refused:
            await client.list(THING)
        assert refused.value.status["message"].endswith("at the cluster scope")


async def test_rules_name_objects_and_namespaces(api: Api) -> None:
    await made(api)
    await made(api, "two")
    elsewhere = await api.new_namespace()
    rules = [rule("patch", resourceNames=["one"]), rule("create", "list", namespaces=[api.namespace])]
    async with somebody(api, *rules) as client:
        await client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
        await client.create(THING, api.namespace, thing("three"))
        for attempt in (
            client.patch(THING, api.namespace, "two", {"spec": {"size": 2}}),
            client.create(THING, elsewhere, thing("one")),
            client.list(THING),
        ):
            with pytest.raises(RefusedError) as refused:
                await attempt
            assert refused.value.code == 403


async def test_everybody_may_look_around(api: Api) -> None:
    async with somebody(api) as client:
        groups = {group["name"] for group in (await client.request("GET", "/apis"))["groups"]}
        assert {"apps", "autoscaling", "coordination.k8s.io", GROUP} <= groups
        resources = (await client.request("GET", f"/apis/{GROUP}/v1"))["resources"]
        found = next(each for each in resources if each["name"] == "things")
        assert (found["kind"], found["shortNames"], found["namespaced"]) == ("Thing", ["th"], True)
        assert "watch" in found["verbs"]
        assert (await client.request("GET", "/version"))["major"] == "1"


async def test_refusals_are_remembered(api: Api) -> None:
    control = api.control
    async with somebody(api, rule("get")) as client:
        with pytest.raises(RefusedError):
            await client.delete(THING, api.namespace, "one")
    refusal = control.forbidden[-1]
    assert (refusal.act.verb, refusal.act.resource, refusal.act.name) == ("delete", "things", "one")
