"""Who may do what: tokens, roles, and the words of a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Client, RefusedError, refusal
from tests.kubernetes.things import DEFINITION, GROUP, THING, made, thing


@asynccontextmanager
async def somebody(api: Api, *rules: dict[str, Any]) -> AsyncIterator[Client]:
    """A client with no more than these rules."""
    await api.install(DEFINITION)
    user = await api.user("bob", rules)
    async with api.as_somebody(user.token) as client:
        yield client


def rule(*verbs: str, resources: tuple[str, ...] = ("things",), **more: Any) -> dict[str, Any]:
    return {"apiGroups": [GROUP], "resources": list(resources), "verbs": list(verbs), **more}


@pytest.mark.parametrize(("token", "codes"), [("wrong", {401}), (None, {401, 403})])
async def test_nobody_without_a_token_that_is_known_is_let_in(api: Api, token: str | None, codes: set[int]) -> None:
    async with api.as_somebody(token) as client:
        refused = await refusal(client.list("ConfigMap", api.namespace))
    assert refused.answer in {(401, "Unauthorized"), (403, "Forbidden")}
    assert refused.code in codes


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
            assert (await refusal(attempt)).answer == (403, "Forbidden")
        with pytest.raises(RefusedError, match='cannot watch resource "things" in API group'):
            async with client.watch(THING, api.namespace):
                pass


async def test_a_refusal_says_who_what_and_where(api: Api) -> None:
    await made(api)
    async with somebody(api, rule("get")) as client:
        said = (await refusal(client.patch(THING, api.namespace, "one", {"status": {}}, "status"))).status["message"]
        assert said.startswith(f'things.{GROUP} "one" is forbidden: User "system:serviceaccount:default:bob-')
        assert said.endswith(
            f'cannot patch resource "things/status" in API group "{GROUP}" in the namespace "{api.namespace}"'
        )
        assert (await refusal(client.list(THING))).status["message"].endswith("at the cluster scope")


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
            assert (await refusal(attempt)).code == 403


async def test_everybody_may_look_around(api: Api) -> None:
    async with somebody(api) as client:
        groups = {group["name"] for group in (await client.request("GET", "/apis"))["groups"]}
        assert {"apps", "autoscaling", "coordination.k8s.io", GROUP} <= groups
        resources = (await client.request("GET", f"/apis/{GROUP}/v1"))["resources"]
        (found,) = (each for each in resources if each["name"] == "things")
        assert (found["kind"], found["shortNames"], found["namespaced"]) == ("Thing", ["th"], True)
        assert "watch" in found["verbs"]
        assert (await client.request("GET", "/version"))["major"] == "1"
