"""Which node runs which worker of a service: one implementation for GM, which sends, and LC, which starts.

A ``Placement`` is one worker of a service with the pod that selects its nodes; ``placements`` returns those of a spec.
"""

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

#: roles of workers
Role = Literal["edge", "cloud"]
#: the program of a worker's process: `halimede worker PROGRAM`
Program = Literal["edge", "tier", "cloud", "member", "joint", "aggregator", "trainer"]
#: Kubernetes' label with a node's name
HOSTNAME = "kubernetes.io/hostname"
#: the groups in the names of tiers, and of workers that train
TIER = "tier"
GROUPS = tuple(spec.group for spec in (TrainingModelSpec, FederatedLearningSpec, IncrementalLearningSpec))
#: beginnings of the URLs of cameras that every node of a network reaches
NETWORK_SCHEMES = ("rtsp://", "rtsps://", "http://", "https://")


@dataclass(frozen=True, slots=True)
class Placement:
    """One worker of a service and the pod that selects its nodes.

    Attributes:
        name: its name within the service; in joint inference its role, or the name of its tier.
        role: its role, also on the broker.
        worker: its spec in the resource.
        pod: its pod, by which ``matches`` selects nodes.
        at: its path in the resource, such as ``spec.edgeWorker``.
        dataset: the name of the Dataset that its node needs; empty if it needs none.
        group: a word in the names of its processes (``worker_name``): of a tier, or of a kind that trains; empty: none.
        training: names of the Models of its training, by purpose; the one of ``model`` gets a new version.
        compares: whether it compares the trained model with the present version, in a learning loop.

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
        """The program of its process: the word after ``halimede worker``."""
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
        """Its name in reports in addition to its role; empty if its name is its role."""
        return "" if self.name == self.role else self.name

    def on(self, service: str, node: str) -> str:
        """Return the name of this worker of ``service`` on a node."""
        return worker_name(service, self.name, node, group=self.group)

    @property
    def model(self) -> str:
        """The name of its Model; empty if it has none, or if a selector chooses it."""
        if isinstance(self.worker, AggregatorSpec | TrainerSpec):
            return ""
        return self.worker.model.name if self.worker.model else ""

    @property
    def selector(self) -> ModelSelector | None:
        """What its Model must be, if a selector chooses it; else None."""
        model = self.worker.model if isinstance(self.worker, EdgeWorkerSpec | CloudWorkerSpec) else None
        return model.selector if model else None

    @property
    def hpa(self) -> dict[str, Any] | None:
        """How its pods in a cluster are scaled (the ``hpa`` of its spec); None: it always has one pod there."""
        return None if isinstance(self.worker, AggregatorSpec | TrainerSpec) else self.worker.hpa

    @property
    def detector(self) -> str:
        """The name of the second Model, which finds objects; empty if it has none."""
        detector = self.worker.detector if isinstance(self.worker, EdgeWorkerSpec | MemberWorker) else None
        return detector.name if detector else ""

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
        return source.url if source and source.url.startswith(NETWORK_SCHEMES) else ""

    @property
    def keeper(self) -> str:
        """The name of the service whose hard samples on its node it trains on; empty if it does not."""
        hard_samples = self.worker.hard_samples if isinstance(self.worker, TrainerSpec) else None
        return hard_samples.service if hard_samples else ""

    @property
    def alone(self) -> bool:
        """Whether it never has a second process, as others have during a replacement: its job knows it by its name."""
        return bool(self.training)

    @property
    def pod_group(self) -> str:
        """The word ``group`` as it stands in the name of its Deployment; empty: the name has no such word."""
        return self.group if self.training else ""

    @property
    def needs_data(self) -> bool:
        """Whether it cannot run without files of its node: it trains on them."""
        return isinstance(self.worker, TrainerSpec)

    @property
    def needs(self) -> dict[str, str]:
        """The names of the Models whose files it needs, by purpose."""
        names = {"model": self.model, "detector": self.detector, **self.committee, "calibration": self.calibration}
        names |= {purpose: name for purpose, name in self.training.items() if purpose not in self.described}
        return {purpose: name for purpose, name in names.items() if name}

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all its Models, with and without files."""
        return (*self.needs.values(), *self.described.values())

    @property
    def described(self) -> dict[str, str]:
        """The names of the Models of which it needs the spec, and no file, by purpose."""
        return {purpose: name for purpose, name in self.training.items() if purpose == "model" and not self.compares}


#: the specs of the kinds whose workers are placed on nodes
Service = JointInferenceServiceSpec | MultiEdgeInferenceServiceSpec | TrainingSpec
#: plurals of the kinds whose workers are placed on nodes
SERVICES = (JOINT_INFERENCE, MULTI_EDGE, TRAINING, FEDERATED, INCREMENTAL)


def placements(spec: Service) -> tuple[Placement, ...]:
    """Return the workers of a service: the edge's first, of a training the aggregator first."""
    if isinstance(spec, TrainingSpec):
        return _training_placements(spec)
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
            Placement(tier.name, "cloud", tier, _pod(tier.template), f"spec.tiers[{i}]", group=TIER)
            for i, tier in enumerate(spec.tiers)
        ),
        Placement("cloud", "cloud", spec.cloud_worker, _pod(spec.cloud_worker.template), "spec.cloudWorker"),
    )


def _training_placements(training: TrainingSpec) -> tuple[Placement, ...]:
    """Return the workers of a training: the aggregator alone needs the first weights."""
    spec, group = training.as_training(), training.group
    models = {"model": spec.model.name} | ({"archive": spec.trainer.archive.name} if spec.trainer.archive else {})
    first = models | ({"initial": spec.initial.name} if spec.initial else {})
    aggregator, pod = spec.aggregator, _pod(spec.aggregator.template)
    workers = [Placement(AGGREGATOR, "cloud", aggregator, pod, "spec.aggregator", group=group, training=first)]
    is_loop = spec.loop is not None
    for i, trainer in enumerate(spec.trainers):
        at, trainer_pod = f"spec.trainers[{i}]", _pod(trainer.template)
        dataset = trainer.dataset.name if trainer.dataset else ""
        workers.append(
            Placement(trainer.name, "edge", trainer, trainer_pod, at, dataset, group, models, compares=is_loop)
        )
    return tuple(workers)


def training_workers(service: str, spec: TrainingSpec) -> dict[str, str]:
    """Return the node of each trainer of a job, by the name of its worker."""
    trainers = [placement for placement in placements(spec) if placement.program == "trainer"]
    return {trainer.on(service, trainer.pod.node_name): trainer.pod.node_name for trainer in trainers}


def cameras_of(body: Mapping[str, Any]) -> list[str]:
    """Return the cameras whose frames a service's edge workers receive over the bus.

    ``body``: a resource as plain data.
    """
    spec = body.get("spec") or {}
    single = [{**spec["edgeWorker"], "name": body["metadata"]["name"]}] if spec.get("edgeWorker") else []
    cameras: list[str] = []
    for worker in spec.get("edgeWorkers") or single:
        source = worker.get("source") or {}
        if not (source.get("path") or source.get("url")):
            cameras += source.get("cameras") or [worker["name"]]
    return cameras


def camera_readers(bodies: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the services that read each camera, by its namespace and name."""
    readers: dict[tuple[str, str], list[str]] = {}
    for body in bodies:
        namespace, name = (str(body["metadata"][key]) for key in ("namespace", "name"))
        for camera in cameras_of(body):
            readers.setdefault((namespace, camera), []).append(name)
    return readers


def _pod(template: dict[str, Any]) -> PodSpec:
    """Return the pod of a template that was checked before."""
    return msgspec.convert(template, PodTemplate).spec


def matches(pod: PodSpec, node: str, labels: Mapping[str, str], *, drained: bool = False) -> bool:
    """Whether a pod may run on a node: by ``nodeName``, else by every label of a non-empty ``nodeSelector``.

    No pod may run on a drained node. An LC need not know that a node is drained: GM deletes its services there.
    """
    if drained:
        return False
    if pod.node_name:
        return pod.node_name == node
    node_labels = {HOSTNAME: node, **labels}
    return bool(pod.node_selector) and all(node_labels.get(k) == v for k, v in pod.node_selector.items())


def worker_name(service: str, name: str, node: str, *, group: str = "") -> str:
    """Return the name of a service's worker on a node: the same at each start. ``group``: the word in it, or empty.

    Names that users give to workers follow a dot, which they cannot contain, and their suffix depends on the kind of
    service. So no two services of a namespace, of one kind or two, have workers of one name on a node.
    """
    if group:
        return f"{service}.{name}-{group}-{node}"
    fixed = name in RESERVED and name != JOINT
    return f"{service}-{name}-{node}" if fixed else f"{service}.{name}.{node}"
