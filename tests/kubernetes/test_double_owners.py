"""Rights that naming an owner takes, where the plugin OwnerReferencesPermissionEnforcement is on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.apiserver import Api, kind_of_server
from tests.kubernetes.client import Body, RefusedError
from tests.kubernetes.things import GROUP, config_map, made, owned

CREATE = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch"]}
FINALIZE = {"apiGroups": [GROUP], "resources": ["things/finalizers"], "verbs": ["update"]}
DELETE = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}

pytestmark = pytest.mark.skipif(kind_of_server() == "cluster", reason="the plugin may be off in a cluster")


def blocking(name: str, owner: Body, *, blocks: bool = True) -> Body:
    body = owned(config_map(name), owner, f"{GROUP}/v1", "Thing")
    body["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = blocks
    return body


async def refused(api: Api, rules: list[dict[str, Any]], method: str, body: Body, name: str = "") -> str:
    """Try to write as somebody with these rights; return why that was refused, if it was."""
    path = f"/api/v1/namespaces/{api.namespace}/configmaps" + (f"/{name}" if name else "")
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    async with api.as_somebody((await api.user("somebody", rules)).token) as client:
        try:
            await client.request(method, path, body, content=content)
        except RefusedError as error:
            return str(error)
    return ""


async def test_to_make_an_owner_wait_takes_the_right_to_its_finalizers(api: Api) -> None:
    owner = await made(api)
    said = await refused(api, [CREATE], "POST", blocking("a", owner))
    assert '403: configmaps "a" is forbidden: cannot set blockOwnerDeletion' in said
    assert await refused(api, [CREATE], "POST", blocking("b", owner, blocks=False)) == ""
    assert await refused(api, [CREATE, FINALIZE], "POST", blocking("c", owner)) == ""


async def test_to_give_another_owner_takes_the_right_to_delete(api: Api) -> None:
    owner = await made(api)
    await api.client.create("ConfigMap", api.namespace, config_map("a"))
    patch = {"metadata": {"ownerReferences": blocking("a", owner)["metadata"]["ownerReferences"]}}
    said = await refused(api, [CREATE, FINALIZE], "PATCH", patch, "a")
    assert '403: configmaps "a" is forbidden: cannot set an ownerRef' in said
    assert await refused(api, [CREATE, FINALIZE], "PATCH", {"data": {"x": "y"}}, "a") == ""
    assert await refused(api, [CREATE, FINALIZE, DELETE], "PATCH", patch, "a") == ""
    assert await refused(api, [CREATE], "PATCH", {"data": {"x": "z"}}, "a") == ""
