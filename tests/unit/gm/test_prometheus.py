"""GM's metrics of nodes without a local controller, or lost to Kubernetes, and of services whose node is deleted."""

from __future__ import annotations

import pytest

from halimede.messages import NodeStatus, Output, TaskInfo, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import RegisteredNode
from services.gm.nodes import Node
from services.gm.prometheus import _counts, _node_states
from services.gm.reports import NodeReports


@pytest.mark.parametrize(
    ("node", "states"),
    [
        (Node("edge0", online=True, epoch=3), [("false", 1.0)]),
        (Node("edge0", online=False, epoch=3, drained=True), [("true", 0.0)]),
        (Node("edge0", online=True, epoch=3, registered=RegisteredNode({}, unready="Unknown")), [("false", 0.0)]),
        (Node("control-plane", online=False, epoch=0, registered=RegisteredNode({})), []),
    ],
)
def test_the_state_of_a_node(node: Node, states: list[tuple[str, float]]) -> None:
    assert _node_states([node]) == [({"node": "edge0", "drained": drained}, value) for drained, value in states]


def test_with_a_deleted_node_a_series_of_a_service_ends_and_none_falls() -> None:
    key, reports = Key("jointinferenceservices", "default", "digits"), NodeReports()
    for node, lost in {"edge0": 5, "edge1": 7}.items():
        workers = [WorkerReport(name=f"digits-{node}", role="edge", phase="Running")]
        output = Output(task_info=TaskInfo(lost=lost))
        status = NodeStatus(phase="Running", uid="u", observed_generation=1, workers=workers, output=output)
        reports.take(key, node, status)
    labels = {"plural": key.plural, "namespace": key.namespace, "service": key.name}
    edge0, edge1 = (labels | {"node": "edge0"}, 5), (labels | {"node": "edge1"}, 7)
    assert _counts(reports, [key], "lost") == [edge0, edge1]
    reports.drop_node("edge1")
    assert _counts(reports, [key], "lost") == [edge0]
