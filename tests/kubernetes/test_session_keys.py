"""The Secret with the session key of a service: who makes it, whose it is, and who sees the key."""

from __future__ import annotations

import base64
from typing import Any

from halimede.api import parse
from halimede.api.worker_environment import SESSION_KEY, session_key_pattern
from services.gm.workloads.object_names import session_secret_name
from tests.integration.gm_world import model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import World, gm_rules, world
from tests.simulated import eventually

EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"


async def secret_of(w: World) -> dict[str, Any] | None:
    found = await w.find()
    assert found is not None
    return await w.object("Secret", session_secret_name(parse({**found, "status": {}})))


def key_of(secret: dict[str, Any]) -> str:
    return base64.b64decode(secret["data"][SESSION_KEY]).decode()


async def variables(w: World, deployment: str) -> dict[str, Any]:
    body = await w.made("Deployment", deployment)
    return {each["name"]: each for each in body["spec"]["template"]["spec"]["containers"][0]["env"]}


async def test_a_service_has_one_key_that_only_its_secret_has_and_the_next_of_that_name_has_another(api: Api) -> None:
    async with world(api) as w, w.node(w.edge) as edge, w.node(w.cloud):
        async with w.gm():
            await w.apply_all()
            await w.reaches("Running")
            secret = await secret_of(w)
            assert secret is not None
            key, found = key_of(secret), await w.find()
            assert found is not None
            assert session_key_pattern.fullmatch(key)
            owner = secret["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["uid"]) == ("JointInferenceService", found["metadata"]["uid"])
            source = {"name": secret["metadata"]["name"], "key": SESSION_KEY, "optional": True}
            assert (await variables(w, EDGE))[SESSION_KEY]["valueFrom"] == {"secretKeyRef": source}
            assert SESSION_KEY not in await variables(w, CLOUD)
            seen = [found, await w.made("Deployment", EDGE), w.shown(), edge.holds, edge.log]
            assert key not in repr(seen)
        async with w.gm("gm-1"):
            body = w.service()
            body["spec"]["edgeWorker"]["deadlineMs"] = 500
            await w.apply(body)
            await w.reaches("Running", generation=2)
            again = await secret_of(w)
            assert again is not None
            assert key_of(again) == key
            await w.delete()
            await eventually(lambda: _gone(w), 60)
            await w.apply_all()
            await w.reaches("Running")
            other = await secret_of(w)
            assert other is not None
            assert key_of(other) != key


async def _gone(w: World) -> bool:
    return await w.find() is None


async def test_a_gm_that_may_not_create_it_reports_that_and_the_pods_run(api: Api) -> None:
    rules = gm_rules(api.namespace)
    rules = [{**rule, "verbs": ["get"]} if rule["resources"] == ["secrets"] else rule for rule in rules]
    user = await api.user("older-role", rules)
    async with world(api) as w, w.gm(user=user), w.node(w.edge), w.node(w.cloud):
        await w.apply(model("small"), model("big"), w.service())

        async def reported() -> bool:
            return "secrets" in str((await w.status()).get("conditions"))

        await eventually(reported, 60)
        assert await secret_of(w) is None
        await eventually(lambda: w.object("Deployment", EDGE), 60)
