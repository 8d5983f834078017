"""What ``--wait`` takes for ready, and what it and `drain` say of what is not."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands.drain import _wait_empty
from halimede.cli.waiting import NotReadyError, wait_ready
from halimede.messages import NodeInfo
from halimede.names import Key
from services.gm.cluster.port import RegisteredNode
from services.gm.node_infos import _trouble
from services.gm.nodes import Node

DIGITS = Key("jointinferenceservices", "default", "digits")


class Said(Client):
    """A client to which GM says one thing after the other, and the last one for ever."""

    def __init__(self, *bodies: dict[str, Any] | None) -> None:
        self.bodies = list(bodies)

    async def get(self, plural: str, name: str, namespace: str = "default") -> dict[str, Any]:
        body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]
        if body is None:
            raise ApiRefusedError("NotFound", "there is none")
        return body


def body(phase: str, observed: int, **metadata: Any) -> dict[str, Any]:
    status = {"phase": phase, "observedGeneration": observed, "conditions": [{"reason": "Why", "message": "because"}]}
    return {"metadata": {"name": "digits", "namespace": "default", **metadata}, "status": status}


async def test_it_is_ready_when_this_generation_is_not_the_one_before() -> None:
    said = Said(body("Pending", 1), body("Running", 1), body("Running", 2))
    await wait_ready(said, DIGITS, 2, 10)
    assert said.bodies == [body("Running", 2)]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (body("Degraded", 2), "ji/digits: Degraded: Why: because. What to do: "),
        (body("Running", 1), "ji/digits: its new generation has not been observed yet"),
        (body("Running", 2, deletionTimestamp="2026-01-01T00:00:00Z"), "not ready in time: ji/digits"),
    ],
)
async def test_what_is_not_ready_in_time_is_said_with_its_condition(last: dict[str, Any], message: str) -> None:
    with pytest.raises(NotReadyError, match=message):
        await wait_ready(Said(last), DIGITS, 2, 0.3)


async def test_what_was_deleted_meanwhile_is_not_waited_for() -> None:
    with pytest.raises(NotReadyError, match="was deleted"):
        await wait_ready(Said(body("Pending", 1), None), DIGITS, 1, 10)


KUBELET = RegisteredNode(unready="NodeStatusUnknown: Kubelet stopped posting node status.")


class Answers:
    def __init__(self, info: NodeInfo) -> None:
        self.info = info

    async def nodes(self, _name: str) -> list[NodeInfo]:
        return [self.info]


@pytest.mark.parametrize(
    ("registered", "said"),
    [(KUBELET, "edge0: Kubernetes takes it as not ready (NodeStatusUnknown"), (None, "node edge0 is offline;")],
)
async def test_a_node_whose_kubelet_alone_has_stopped_is_not_called_offline(
    registered: RegisteredNode | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node("edge0", online=registered is not None, epoch=1, registered=registered)
    info = NodeInfo(name="edge0", online=False, resources=1, workers=2, trouble=_trouble(node))
    assert await _wait_empty(Answers(info), "edge0", 1.0) == 1  # type: ignore[arg-type]
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "2 workers of 1 service" in shown
    assert ("offline" in shown) is (registered is None)
