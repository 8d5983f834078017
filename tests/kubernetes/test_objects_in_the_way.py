"""What keeps GM from making an object: it is somebody else's, or the API server does not take it.

Each is a condition that says so, the rest of the service goes on, and it heals.
"""

from __future__ import annotations

import pytest

from services.gm import reconciler
from tests.kubernetes.apiserver import Api
from tests.kubernetes.things import deployment
from tests.kubernetes.world import CLOUD, EDGE, message, world

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches what is somebody else's, so it is looked at again now and then: here, sooner."""
    monkeypatch.setattr(reconciler, "TROUBLE_PATIENCE", 1.0)


async def test_a_deployment_of_that_name_that_is_somebody_elses_is_left_alone_until_it_goes(api: Api) -> None:
    async with world(api, play=False) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        theirs = await api.client.create("Deployment", w.namespace, deployment(EDGE, env=[{"name": "A", "value": "b"}]))
        async with w.player:
            await w.apply_all()
            text = message(await w.reaches("Pending", "NotOurs"))
            assert f"Deployment {w.namespace}/{EDGE} exists" in text
            assert await w.object("Deployment", CLOUD)
            found = await w.made("Deployment", EDGE)
            assert (found["metadata"]["uid"], found["metadata"]["generation"]) == (theirs["metadata"]["uid"], 1)
            assert "ownerReferences" not in found["metadata"]
            await api.client.delete("Deployment", w.namespace, EDGE)
            await w.reaches("Running")


@pytest.mark.parametrize("code", [403, 422])
async def test_what_a_rule_of_the_cluster_forbids_is_a_condition_and_heals_with_the_rule(api: Api, code: int) -> None:
    control = api.control  # such as a quota that is used up, or an admission webhook
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        rule = control.fail(code, times=10**9, matches=lambda r: r.resource == "deployments" and r.verb == "create")
        await w.apply_all()
        text = message(await w.reaches("Pending", "NotAccepted"))
        assert f"Deployment {w.namespace}/{EDGE}: " in text
        assert f"({code})" not in text
        assert "POST" not in text
        rule.end()
        await w.reaches("Running")
        assert rule.struck < 20
