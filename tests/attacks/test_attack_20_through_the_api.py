"""Attack 20, from `kubectl apply` on: a service that asks for more than the operator allows gets no such Deployment,
and its status names the field. What no schema allows, the API server refuses itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.gm_world import model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body, RefusedError
from tests.kubernetes.conftest import api, real_server  # noqa: F401 - fixtures
from tests.kubernetes.world import World, world

pytestmark = pytest.mark.slow

AT = "spec.edgeWorker.template.spec."
#: what is written where in a pod, the reason, and the field that is to blame
ESCAPES: list[tuple[str, Any, str, str]] = [
    ("volumes", [{"name": "v", "hostPath": {"path": "/etc"}}], "HostPathNotAllowed", "volumes[0].hostPath.path"),
    ("hostNetwork", True, "PodNotAllowed", "hostNetwork"),
    ("serviceAccountName", "halimede-gm", "PodNotAllowed", "serviceAccountName"),
]
CONTAINER_ESCAPES: list[tuple[str, Any, str, str]] = [
    ("securityContext", {"privileged": True}, "PodNotAllowed", "containers[0].securityContext.privileged"),
    ("image", "evil.example/x", "ImageNotAllowed", "containers[0].image"),
]
#: variables that no schema takes
HOSTILE_NAMES = ["A=B", "", "A\0", "x" * 300]


def hostile(w: World, name: str, field: str, value: Any, *, in_container: bool = False) -> Body:
    body = w.service(name)
    pod = body["spec"]["edgeWorker"]["template"]["spec"]
    (pod["containers"][0] if in_container else pod)[field] = value
    return body


async def test_attack_20_no_escape_becomes_a_deployment_and_its_status_names_the_field(api: Api) -> None:  # noqa: F811
    wanted: dict[str, tuple[str, str]] = {}
    async with world(api, allowed_images=("halimede/",)) as w, w.gm():
        await w.apply(model("small"), model("big"), w.service("honest"))
        for escapes, in_container in ((ESCAPES, False), (CONTAINER_ESCAPES, True)):
            for field, value, reason, blamed in escapes:
                name = f"evil-{len(wanted)}"
                wanted[name] = reason, blamed
                await w.apply(hostile(w, name, field, value, in_container=in_container))
        await w.apply(model("passwords", url="/etc/shadow"))
        stolen = w.service("stolen")
        stolen["spec"]["edgeWorker"]["model"]["name"] = "passwords"
        await w.apply(stolen)
        await w.apply(hostile(w, "two-lines", "env", [{"name": "A\nB", "value": "x"}], in_container=True))
        await w.reaches("Running", name="honest")
        for name, (reason, blamed) in wanted.items():
            status = await w.reaches("Pending", reason, name=name)
            assert f"{AT}{blamed}: " in status["conditions"][-1]["message"]
        await w.reaches("Pending", "HostPathNotAllowed", name="stolen")
        assert "env[" in (await w.reaches("Pending", "NotAccepted", name="two-lines"))["conditions"][-1]["message"]
        made = {each["metadata"]["name"] for each in (await api.client.list("Deployment", w.namespace))["items"]}
        assert made == {f"{name}-deployment-cloud" for name in (*wanted, "stolen", "two-lines")} | {
            "honest-deployment-edge",
            "honest-deployment-cloud",
        }


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_attack_20_no_schema_takes_a_variable_that_is_none(api: Api, name: str) -> None:  # noqa: F811
    async with world(api, play=False) as w:
        env = [{"name": name, "value": "x"}]
        with pytest.raises(RefusedError, match=r"containers\[0\]\.env\[0\]\.name") as refused:
            await w.apply(hostile(w, "helmet", "env", env, in_container=True))
        assert refused.value.code == 422
