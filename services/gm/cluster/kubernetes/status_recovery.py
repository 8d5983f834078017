"""What a status says of its nodes, as the reports that it was made from. Pure.

There is no other memory: a GM that takes over knows the counts of a node that is away because the last one wrote them
into the status. A report that is made up here holds until the node's own comes.
"""

from __future__ import annotations

from collections.abc import Iterator

from halimede.messages import NodeStatus, NodeSummary, Output
from services.gm.cluster.port import NodeReport, StoredResource
from services.gm.service_status import LEFT

#: of a node that said so; Pending may also mean that it has said nothing
SAID = {"Running": "Running", "Ready": "Ready", "Failed": "Failed"}


def reports_of(stored: StoredResource) -> Iterator[NodeReport]:
    """Return what is known of each node that a status names."""
    for summary in stored.status.nodes if stored.status else ():
        if summary.phase in SAID or summary.task_info is not None:
            yield _report(stored, summary)


def _report(stored: StoredResource, summary: NodeSummary) -> NodeReport:
    generation = stored.status.observed_generation if stored.status else 0
    told = NodeStatus(
        phase=SAID.get(summary.phase, "Pending"),  # type: ignore[arg-type]
        output=Output(task_info=summary.task_info) if summary.task_info else None,
        uid=stored.uid,
        observed_generation=generation,
        reason=summary.reason,
        message=summary.message,
    )
    return NodeReport(stored.key, summary.node, told, live=summary.phase in SAID, edge=_has_edge(summary))


def _has_edge(summary: NodeSummary) -> bool:
    """Whether an edge worker has ever run there: of nodes that were left only such are named."""
    info = summary.task_info
    edge = info is not None and any((info.edge_inference_number, info.skipped, info.lost))
    return edge or summary.phase == LEFT
