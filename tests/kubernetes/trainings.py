"""A training on Kubernetes: the resource, and what nodes report of it."""

from __future__ import annotations

from typing import Any

from halimede.messages import TensorFile, TrainingProgress, WorkerReport
from halimede.names import Key
from tests.integration.gm_world import FakeNode
from tests.kubernetes.client import Body
from tests.kubernetes.world import RunningGm, World

PLURAL = "trainingmodels"
FILE = TensorFile(digest="d" * 64, size=1000)


def training(w: World, name: str = "digits", trainer: Body | None = None, **spec: Any) -> Body:
    """A training with an aggregator in the cloud and a trainer, of which more may be said, at the edge."""

    def template(node: str) -> Body:
        return {"spec": {"nodeName": node, "containers": [{"name": "worker", "image": "halimede/worker"}]}}

    edge = {"name": "edge0", "dataset": {"name": "frames"}, "template": template(w.edge), **(trainer or {})}
    parts = {"aggregator": {"template": template(w.cloud)}, "trainers": [edge]}
    kind = {"apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel", "metadata": {"name": name}}
    return {**kind, "spec": {"model": {"name": "small"}, **parts, "rounds": 3, **spec}}


def report(node: FakeNode, key: Key, part: str, role: str, progress: TrainingProgress) -> None:
    """Report how far a part of a training on a node is."""
    name = f"{key.name}.{part}-training-{node.name}"
    node.overrides[part] = WorkerReport(name=name, role=role, part=part, phase="Running", training=progress)  # type: ignore[arg-type]
    node.report(key)


def store(gm: RunningGm) -> None:
    """As if GM's store had the file: GM of these tests has no store of files."""
    assert gm.manager is not None
    gm.manager._plane.files.states[FILE.digest] = ""
