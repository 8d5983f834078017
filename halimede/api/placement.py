"""Which node runs which worker of a service: one implementation for GM, which sends, and LC, which starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from halimede.api.deferral import Deferral
from halimede.api.federatedlearning import PLURAL as FEDERATED
from halimede.api.federatedlearning import FederatedLearningSpec
from halimede.api.incrementallearning import PLURAL as INCREMENTAL
from halimede.api.incrementallearning import IncrementalLearningSpec
from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.api.jointinference import (
    RESERVED,
    CloudWorkerSpec,
    EdgeWorkerSpec,
    JointInferenceServiceSpec,
    ModelSelector,
    TierWorker,
)
from halimede.api.multiedge import JOINT, JointWorker, MemberWorker, MultiEdgeInferenceServiceSpec, members
from halimede.api.multiedge import PLURAL as MULTI_EDGE
from halimede.api.podtemplate import PodSpec, PodTemplate
from halimede.api.trainingmodel import AGGREGATOR, AggregatorSpec, TrainerSpec, TrainingModelSpec, TrainingSpec
from halimede.api.trainingmodel import PLURAL as TRAINING

Role = Literal["edge", "cloud"]
#: the program of a worker's process: `halimede worker PROGRAM`
Program = Literal["edge", "tier", "cloud", "member", "joint", "aggregator", "trainer"]
HOSTNAME = "kubernetes.io/hostname"
#: the word in the names of tiers, and those of workers that train
TIER = "tier"
GROUPS = tuple(spec.group for spec in (TrainingModelSpec, FederatedLearningSpec, IncrementalLearningSpec))
#: beginnings of the URLs of cameras that every node of a network reaches
NETWORK = ("rtsp://", "rtsps://", "http://", "https://")


@dataclass(frozen=True, slots=True)
class Placement:
    """One worker of a service and the pod that selects its nodes.

    Attributes:
        name: its name within the service; in joint inference its role, or the name of its tier.
        role: its role, also on the broker.
        worker: its spec in the resource.
        pod: its pod.
        at: its path in the resource.
        dataset: the name of the Dataset that its node needs; empty if it needs none.
        group: the word in the names of such workers on nodes, which users name; empty: there is none.
        training: the Models of its training, by purpose; ``model`` is the one that gets a new version.
        compares: it compares the trained model with the present one, in a learning loop.

    """

    name: str
    role: Role
    worker: EdgeWorkerSpec | TierWorker | CloudWorkerSpec | MemberWorker | JointWorker | AggregatorSpec | TrainerSpec
    pod: PodSpec
    at: str
    dataset: str = ""
    group: str = ""
    training: Mapping[str, str] = field(default_factory=dict)
    compares: bool = False

    @property
    def program(self) -> Program:
        """The program of its process."""
        match self.worker:
            case TierWorker():
                return "tier"
            case MemberWorker():
                return "member"
            case JointWorker():
                return "joint"
            case AggregatorSpec():
                return "aggregator"
            case TrainerSpec():
                return "trainer"
            case _:
                return self.role

    @property
    def part(self) -> str:
        """Its name in reports in addition to its role, if several workers of the service have one role; else empty."""
        return "" if self.name == self.role else self.name

    def on(self, service: str, node: str) -> str:
        """Return the name of this worker of a service on a node."""
        return worker_name(service, self.name, node, group=self.group)

    @property
    def model(self) -> str:
        """The name of its Model; empty if it has none, or if it is chosen by a selector."""
        if isinstance(self.worker, AggregatorSpec | TrainerSpec):
            return ""
        return self.worker.model.name if self.worker.model else ""

    @property
    def selector(self) -> ModelSelector | None:
        """What its Model must be, if it is chosen by a selector."""
        chosen = self.worker.model if isinstance(self.worker, EdgeWorkerSpec | CloudWorkerSpec) else None
        return chosen.selector if chosen else None

    @property
    def hpa(self) -> dict[str, Any] | None:
        """How its pods are scaled; None: there is one."""
        return None if isinstance(self.worker, AggregatorSpec | TrainerSpec) else self.worker.hpa

    @property
    def detector(self) -> str:
        """The name of the second Model, which finds objects; empty if it has none."""
        found = self.worker.detector if isinstance(self.worker, EdgeWorkerSpec | MemberWorker) else None
        return found.name if found else ""

    @property
    def committee(self) -> dict[str, str]:
        """The names of the further Models that answer together with ``model``, by purpose."""
        members = self.worker.committee if isinstance(self.worker, EdgeWorkerSpec) else []
        return {f"committee{number}": member.name for number, member in enumerate(members, 1)}

    @property
    def calibration(self) -> str:
        """The name of the Model with its calibration; empty if it has none."""
        return self.worker.calibration.name if isinstance(self.worker, Deferral) and self.worker.calibration else ""

    @property
    def rule(self) -> str:
        """The name of its mining rule; empty if it has none."""
        return self.worker.hard_example_mining.name if isinstance(self.worker, Deferral) else ""

    @property
    def folder(self) -> str:
        """The folder of the node with its frames; empty if it has none."""
        source = self.worker.source if isinstance(self.worker, EdgeWorkerSpec | MemberWorker) else None
        return source.path if source else ""

    @property
    def stream(self) -> str:
        """The URL of the network camera that it reads; empty if it reads none, or a device or file of its node."""
        source = self.worker.source if isinstance(self.worker, EdgeWorkerSpec | MemberWorker) else None
        return source.url if source and source.url.startswith(NETWORK) else ""

    @property
    def keeper(self) -> str:
        """The name of the service whose hard samples on its node it trains on; empty if it does not."""
        kept = self.worker.hard_samples if isinstance(self.worker, TrainerSpec) else None
        return kept.service if kept else ""

    @property
    def alone(self) -> bool:
        """Whether there is never a second process of it: its name is part of what all workers of the job know."""
        return bool(self.training)

    @property
    def objects(self) -> str:
        """The word in the names of its objects in a cluster; empty: there is none."""
        return self.group if self.training else ""

    @property
    def needs_data(self) -> bool:
        """Whether it cannot run without files of its node: it trains on them."""
        return isinstance(self.worker, TrainerSpec)

    @property
    def needs(self) -> dict[str, str]:
        """The names of the Models whose files it needs, by the resource's field."""
        named = {"model": self.model, "detector": self.detector, **self.committee, "calibration": self.calibration}
        named |= {what: name for what, name in self.training.items() if what not in self.described}
        return {what: name for what, name in named.items() if name}

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all Models that it names."""
        return (*self.needs.values(), *self.described.values())

    @property
    def described(self) -> dict[str, str]:
        """The names of the Models of which it needs the spec, and no file, by the resource's field."""
        return {what: name for what, name in self.training.items() if what == "model" and not self.compares}


Service = JointInferenceServiceSpec | MultiEdgeInferenceServiceSpec | TrainingSpec
#: plurals of the kinds whose workers are placed on nodes
SERVICES = (JOINT_INFERENCE, MULTI_EDGE, TRAINING, FEDERATED, INCREMENTAL)


def placements(spec: Service) -> tuple[Placement, ...]:
    """Return the workers of a service."""
    if isinstance(spec, TrainingSpec):
        return _of_training(spec)
    data = spec.dataset.name if spec.dataset else ""
    if isinstance(spec, MultiEdgeInferenceServiceSpec):
        return tuple(
            Placement(name, "cloud", worker, _pod(worker.template), at)
            if name == JOINT
            else Placement(name, "edge", worker, _pod(worker.template), at, data)
            for name, at, worker in members(spec)
        )
    return (
        Placement("edge", "edge", spec.edge_worker, _pod(spec.edge_worker.template), "spec.edgeWorker", data),
        *(
            Placement(t.name, "cloud", t, _pod(t.template), f"spec.tiers[{i}]", group=TIER)
            for i, t in enumerate(spec.tiers)
        ),
        Placement("cloud", "cloud", spec.cloud_worker, _pod(spec.cloud_worker.template), "spec.cloudWorker"),
    )


def _of_training(training: TrainingSpec) -> tuple[Placement, ...]:
    """Return the workers of a training: the aggregator alone needs the first weights."""
    spec, group = training.as_training(), training.group
    used = {"model": spec.model.name} | ({"archive": spec.trainer.archive.name} if spec.trainer.archive else {})
    first = used | ({"initial": spec.initial.name} if spec.initial else {})
    opens = spec.aggregator
    return (
        Placement(AGGREGATOR, "cloud", opens, _pod(opens.template), "spec.aggregator", group=group, training=first),
        *(
            Placement(
                each.name,
                "edge",
                each,
                _pod(each.template),
                f"spec.trainers[{i}]",
                each.dataset.name if each.dataset else "",
                group,
                used,
                compares=spec.loop is not None,
            )
            for i, each in enumerate(spec.trainers)
        ),
    )


def training_workers(service: str, spec: TrainingSpec) -> dict[str, str]:
    """Return the node of each trainer of a job, by the name of its worker."""
    places = [place for place in placements(spec) if place.program == "trainer"]
    return {place.on(service, place.pod.node_name): place.pod.node_name for place in places}


def cameras_of(body: Mapping[str, Any]) -> list[str]:
    """Return the cameras whose frames a service's edge workers receive over the bus; ``body`` is plain data."""
    spec = body.get("spec") or {}
    alone = [{**spec["edgeWorker"], "name": body["metadata"]["name"]}] if spec.get("edgeWorker") else []
    found: list[str] = []
    for worker in spec.get("edgeWorkers") or alone:
        source = worker.get("source") or {}
        if not (source.get("path") or source.get("url")):
            found += source.get("cameras") or [worker["name"]]
    return found


def camera_readers(bodies: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the services that read each camera, by its namespace and name."""
    readers: dict[tuple[str, str], list[str]] = {}
    for body in bodies:
        namespace, name = (str(body["metadata"][key]) for key in ("namespace", "name"))
        for camera in cameras_of(body):
            readers.setdefault((namespace, camera), []).append(name)
    return readers


def _pod(template: dict[str, Any]) -> PodSpec:
    return msgspec.convert(template, PodTemplate).spec


def matches(pod: PodSpec, node: str, labels: Mapping[str, str], *, drained: bool = False) -> bool:
    """Whether a pod may run on a node: by ``nodeName``, else by every label of a non-empty ``nodeSelector``.

    No pod may run on a drained node. An LC need not know that: GM deletes services that no longer belong there.
    """
    if drained:
        return False
    if pod.node_name:
        return pod.node_name == node
    known = {HOSTNAME: node, **labels}
    return bool(pod.node_selector) and all(known.get(k) == v for k, v in pod.node_selector.items())


def worker_name(service: str, name: str, node: str, *, group: str = "") -> str:
    """Return the name of a service's worker on a node: the same at each start. ``group``: see ``Placement.group``.

    Names that users give to workers follow a dot, which they cannot contain, and their suffix depends on the kind of
    service. So no two services of a namespace, of one kind or two, have workers of one name on a node.
    """
    if group:
        return f"{service}.{name}-{group}-{node}"
    fixed = name in RESERVED and name != JOINT
    return f"{service}-{name}-{node}" if fixed else f"{service}.{name}.{node}"
