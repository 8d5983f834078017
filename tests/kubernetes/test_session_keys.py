"""The Secret with the session key of a service: who makes it, whose it is, and who sees the key."""

from __future__ import annotations

import base64

from halimede.api import parse
from halimede.api.worker_environment import SESSION_KEY, session_key_pattern
from services.gm.workloads.object_names import session_secret_name
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import CLOUD, EDGE, World, gm_rules, world
from tests.simulated import eventually


async def name_of_secret(w: World) -> str:
    found = await w.find()
    assert found is not None
    return session_secret_name(parse({**found, "status": {}}))


async def key_of(w: World) -> str:
    secret = await w.made("Secret", await name_of_secret(w))
    return base64.b64decode(secret["data"][SESSION_KEY]).decode()


async def test_a_service_has_one_key_that_only_its_secret_has_and_the_next_of_that_name_has_another(api: Api) -> None:
    async with world(api) as w, w.node(w.edge) as edge, w.node(w.cloud):
        async with w.gm():
            await w.apply_all()
            await w.reaches("Running")
            name, key, found = await name_of_secret(w), await key_of(w), await w.find()
            assert found is not None
            assert session_key_pattern.fullmatch(key)
            owner = (await w.made("Secret", name))["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["uid"]) == ("JointInferenceService", found["metadata"]["uid"])
            source = {"name": name, "key": SESSION_KEY, "optional": True}
            assert (await w.variables(EDGE))[SESSION_KEY] == {"secretKeyRef": source}
            assert SESSION_KEY not in await w.variables(CLOUD)
            seen = [found, await w.made("Deployment", EDGE), w.shown(), edge.holds, edge.log]
            assert key not in repr(seen)
        async with w.gm("gm-1"):
            await w.edit()
            await w.reaches("Running", generation=2)
            assert await key_of(w) == key
            await w.delete()
            await w.until_gone()
            await w.apply_all()
            await w.reaches("Running")
            assert await key_of(w) != key


async def test_a_gm_that_may_not_create_it_reports_that_and_the_pods_run(api: Api) -> None:
    rules = gm_rules(api.namespace)
    rules = [{**rule, "verbs": ["get"]} if rule["resources"] == ["secrets"] else rule for rule in rules]
    user = await api.user("older-role", rules)
    async with world(api) as w, w.gm(user=user), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.shows(lambda status: "secrets" in str(status.get("conditions")))
        assert await w.object("Secret", await name_of_secret(w)) is None
        await eventually(lambda: w.object("Deployment", EDGE), 60)
