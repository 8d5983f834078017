"""Who may do what: tokens, roles, and the words of a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kubernetes.apiserver import Api, kind_of_server
from tests.kubernetes.client import Client, refusal
from tests.kubernetes.things import DEFINITION, GROUP, THING, config_map, made, owned, thing


@asynccontextmanager
async def somebody(api: Api, *rules: dict[str, Any]) -> AsyncIterator[Client]:
    """A client with no more than these rules."""
    await api.install(DEFINITION)
    user = await api.user("bob", rules)
    async with api.as_somebody(user.token) as client:
        yield client


def rule(*verbs: str, **more: Any) -> dict[str, Any]:
    return {"apiGroups": [GROUP], "resources": ["things"], "verbs": list(verbs), **more}


@pytest.mark.parametrize(("token", "codes"), [("wrong", {401}), (None, {401, 403})])
async def test_nobody_without_a_token_that_is_known_is_let_in(api: Api, token: str | None, codes: set[int]) -> None:
    async with api.as_somebody(token) as client:
        refused = await refusal(client.list("ConfigMap", api.namespace))
    assert refused.answer in {(401, "Unauthorized"), (403, "Forbidden")}
    assert refused.code in codes


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


@pytest.mark.skipif(
    kind_of_server() == "cluster", reason="OwnerReferencesPermissionEnforcement may be off in a cluster"
)
async def test_to_give_another_owner_takes_the_right_to_delete(api: Api) -> None:
    patch = {"metadata": owned(config_map("a"), await made(api), f"{GROUP}/v1", "Thing")["metadata"]}
    await api.client.create("ConfigMap", api.namespace, config_map("a"))
    may_patch = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}
    async with somebody(api, may_patch) as client:
        await client.patch("ConfigMap", api.namespace, "a", {"data": {"x": "y"}})
        said = str(await refusal(client.patch("ConfigMap", api.namespace, "a", patch)))
        assert '403: configmaps "a" is forbidden: cannot set an ownerRef' in said
    async with somebody(api, may_patch, may_patch | {"verbs": ["delete"]}) as client:
        await client.patch("ConfigMap", api.namespace, "a", patch)
