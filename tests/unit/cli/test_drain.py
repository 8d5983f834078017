"""What `halimede drain` says of a node that cannot be emptied now."""

from __future__ import annotations

import pytest

from halimede.cli.commands.drain import _wait_empty
from halimede.messages import NodeInfo
from services.gm.cluster.port import RegisteredNode
from services.gm.node_infos import _trouble
from services.gm.nodes import Node

KUBELET = RegisteredNode(unready="NodeStatusUnknown: Kubelet stopped posting node status.")


class Answers:
    """A client that knows one node."""

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
