"""Which node runs which worker of a service: the same answer for GM, which sends, and for LC, which starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from halimede.api.jointinference import CloudWorker, EdgeWorker, JointInferenceServiceSpec
from halimede.api.podtemplate import PodSpec, PodTemplate
from halimede.messages.control import WorkerRole

Role = Literal["edge", "cloud"]
HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Placement:
    """One role of a service: its worker and the pod that asks for nodes."""

    role: Role
    worker: EdgeWorker | CloudWorker
    pod: PodSpec


def placements(spec: JointInferenceServiceSpec) -> tuple[Placement, Placement]:
    """Return the two roles of a joint inference service."""
    edge = msgspec.convert(spec.edge_worker.template, PodTemplate)
    cloud = msgspec.convert(spec.cloud_worker.template, PodTemplate)
    return Placement("edge", spec.edge_worker, edge.spec), Placement("cloud", spec.cloud_worker, cloud.spec)


def matches(pod: PodSpec, node: str, labels: Mapping[str, str], *, drained: bool = False) -> bool:
    """Whether a pod belongs on a node: by ``nodeName``, else by every label of a non-empty ``nodeSelector``.

    Nothing belongs on a drained one. An LC need not know of that: what has no place there any more is taken from it.
    """
    if drained:
        return False
    if pod.node_name:
        return pod.node_name == node
    known = {HOSTNAME: node, **labels}
    return bool(pod.node_selector) and all(known.get(k) == v for k, v in pod.node_selector.items())


def worker_name(service: str, role: WorkerRole, node: str) -> str:
    """Return the name of a service's worker on a node: the same on every start."""
    return f"{service}-{role}-{node}"
