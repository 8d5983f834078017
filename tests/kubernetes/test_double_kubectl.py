"""The double as `kubectl` sees it: a client that nobody here wrote (skipped where there is none)."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.surroundings import kubectl
from tests.kubernetes.things import DEFINITION, THING, thing

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


async def apply(api: Api, body: Body) -> str:
    return await kubectl(api, "apply", "-f", "-", stdin=json.dumps(body))


async def test_apply_twice_get_by_short_name_and_delete(secured: Api) -> None:
    await secured.install(DEFINITION)
    body = {**thing("one", mode="slow"), "metadata": {"name": "one"}}
    assert "created" in await apply(secured, body)
    assert "unchanged" in await apply(secured, body)
    body["spec"]["size"] = 3
    assert "configured" in await apply(secured, body)
    await secured.client.patch(THING, secured.namespace, "one", {"status": {"phase": "Running", "active": 2}}, "status")
    shown = (await kubectl(secured, "get", "th")).splitlines()
    assert shown[0].split() == ["NAME", "PHASE", "ACTIVE", "READY", "AGE"]
    assert shown[1].split()[:3] == ["one", "Running", "2"]
    assert "deleted" in await kubectl(secured, "delete", "thing", "one")
    assert "No resources found" in await kubectl(secured, "get", "things")
