"""The environment of every worker, both as a process of a node and in a pod; with Sedna's names where it has them.

``halimede.worker.settings.read`` reads it. docs/reference/environment.md lists the variables. The environment never
contains a Model's original URL, which may contain a secret and which a worker does not need.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from halimede.api import jointinference, multiedge
from halimede.api.base import Resource
from halimede.api.deferral import AS_IT_CAME, Deferral
from halimede.api.jointinference import CloudWorkerSpec, EdgeWorkerSpec, JointInferenceServiceSpec, TierWorker
from halimede.api.model import ModelSpec, about_file
from halimede.api.multiedge import MemberWorker, MultiEdgeInferenceServiceSpec, cameras, source_of
from halimede.api.placement import Placement, training_workers
from halimede.api.trainingmodel import TrainerSpec, TrainingSpec, job_settings

#: the path in the spec for a worker that does not need the Model's file
NO_FILE = "/none"
#: seconds between a worker's reports to its LC, unless its template sets another value
LC_PERIOD = "1"
#: the variable with a service's session key: a secret of 128 bits, the source of the client ids of sessions for frames
SESSION_KEY = "SESSION_KEY"
#: plurals of the kinds whose workers have sessions in which the broker keeps frames
WITH_SESSIONS = frozenset({jointinference.PLURAL, multiedge.PLURAL})
#: the user property with the session key, of the message with which GM sends a service to a node
SESSION_KEY_PROPERTY = "session-key"
#: hexadecimal digits of a session key, and of its digest
SESSION_KEY_DIGITS, SESSION_DIGEST_DIGITS = 32, 8
#: a valid session key
session_key_pattern = re.compile(rf"[0-9a-f]{{{SESSION_KEY_DIGITS}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """The variables of a worker by name: ``facts`` override those of the pod template, ``defaults`` do not."""

    facts: dict[str, str]
    defaults: dict[str, str]


@dataclass(frozen=True, slots=True)
class MountedModel:
    """A ``model``, and the path of its file or folder for the worker; empty: the worker needs only the spec."""

    model: Resource[ModelSpec]
    path: str = ""

    def variables(self, name: str) -> dict[str, str]:
        """Return its path and spec as variables whose names begin with ``name``."""
        spec = _json(about_file(self.model.spec, self.path or NO_FILE))
        return {f"{name}_URL": self.path, f"{name}_SPEC": spec} if self.path else {f"{name}_SPEC": spec}


def common(
    service: Resource[Any],
    placement: Placement,
    models: Mapping[str, MountedModel],
    *,
    broker: str,
    state: str,
    grace_s: float,
    fetch_allow: str,
    data: str = "",
    reference: str = "",
) -> WorkerEnvironment:
    """Return the variables of a worker that are set alike on nodes and in pods; both add some of their own.

    Args:
        service: the service that has the worker.
        placement: the worker.
        models: the Models that it names, by purpose (``Placement.needs`` and ``described``).
        broker: the broker's address.
        state: the worker's folder.
        grace_s: seconds to drain before it is killed.
        fetch_allow: addresses that its own camera may have in addition to public ones; a template cannot change them.
        data: the path of its samples for training; empty: it has none.
        reference: the path of samples of the stream as it was before a drift, for the trainers of a learning loop;
            empty: it has none.

    """
    facts = {
        "NAMESPACE": service.metadata.namespace,
        "SERVICE_NAME": service.metadata.name,
        "SERVICE_UID": service.metadata.uid,
        "HALIMEDE_BROKER": broker,
        "HALIMEDE_STATE": state,
        "GRACE_S": f"{grace_s:g}",
    }
    for purpose, model in models.items():
        facts |= model.variables(purpose.upper())
    if isinstance(placement.worker, Deferral):
        facts |= _deferral(placement.worker)
    if isinstance(placement.worker, EdgeWorkerSpec):
        facts |= _edge(placement.worker)
    if isinstance(placement.worker, EdgeWorkerSpec | MemberWorker):  # also if its template sets another source
        facts["HALIMEDE_FETCH_ALLOW"] = fetch_allow
    if isinstance(placement.worker, CloudWorkerSpec | TierWorker):
        facts |= _batching(placement.worker)
    if isinstance(service.spec, JointInferenceServiceSpec):
        facts |= _tier(service.spec, placement)
    if isinstance(service.spec, MultiEdgeInferenceServiceSpec):
        facts |= _multi_edge(service.spec, placement)
    if isinstance(service.spec, TrainingSpec):
        trainers = training_workers(service.metadata.name, service.spec)
        facts["TIER"] = placement.name
        facts["TRAINING"] = _json(job_settings(service.spec.as_training(), trainers))
    if isinstance(placement.worker, TrainerSpec):
        facts |= {"TRAIN_DATASET_URL": data} | ({"TRAIN_REFERENCE_URL": reference} if reference else {})
    return WorkerEnvironment(facts, {"LC_PERIOD": LC_PERIOD})


def session_digest(key: str) -> str:
    """Return a digest (8 hexadecimal digits) by which session keys can be compared; empty for no key."""
    return hashlib.sha256(key.encode()).hexdigest()[:SESSION_DIGEST_DIGITS] if key else ""


def needs_session_key(placement: Placement) -> bool:
    """Whether a worker may have a session in which the broker keeps frames."""
    return isinstance(placement.worker, EdgeWorkerSpec | MemberWorker)


def _deferral(worker: Deferral) -> dict[str, str]:
    """Return the variables about mining and uploads."""
    mining = worker.hard_example_mining
    variables = {
        "HEM_NAME": mining.name,
        "HEM_PARAMETERS": _json([{"key": p.key, "value": p.value} for p in mining.parameters]),
        "MINING_MODE": mining.mode,
        "FUSION": worker.fusion,
    }
    if worker.target_upload_ratio is not None:
        variables["TARGET_UPLOAD_RATIO"] = f"{worker.target_upload_ratio:g}"
    if worker.costs and worker.costs.adaptive:
        variables["COSTS"] = _json(worker.costs)
    if worker.encoding != AS_IT_CAME:
        variables["UPLOAD_ENCODING"] = worker.encoding
    if worker.max_bytes is not None:
        variables["UPLOAD_MAX_BYTES"] = str(worker.max_bytes)
    return variables | ({"AUDIT_SHARE": f"{worker.audit_share:g}"} if worker.audit_share else {})


def _batching(worker: CloudWorkerSpec | TierWorker) -> dict[str, str]:
    """Return the variables about batches; empty for the defaults."""
    variables = {"MAX_BATCH_SIZE": str(worker.max_batch_size)} if worker.max_batch_size != jointinference.BATCH else {}
    delay = worker.max_queue_delay_ms
    return variables | ({"MAX_QUEUE_DELAY_MS": f"{delay:g}"} if delay != jointinference.DELAY_MS else {})


def _edge(worker: EdgeWorkerSpec) -> dict[str, str]:
    """Return the variables of an edge worker alone."""
    variables = {"DEADLINE_MS": str(worker.deadline_ms)}
    if worker.upload != "frame":
        variables["UPLOAD"] = worker.upload
    if worker.keep_hard_samples:
        variables["KEEP_HARD_SAMPLES"] = _json(worker.keep_hard_samples)
    if worker.occupancy:
        variables["OCCUPANCY"] = _json(worker.occupancy)
    if worker.detector:
        variables["DETECTOR"] = _json(worker.detector)
    return variables | ({"SOURCE": _json(worker.source)} if worker.source else {})


def _tier(spec: JointInferenceServiceSpec, placement: Placement) -> dict[str, str]:
    """Return the tier of a worker and the tier that it requests; empty if there are only edge and cloud."""
    if not spec.tiers:
        return {}
    names = ["edge", *(tier.name for tier in spec.tiers), "cloud"]
    higher = names[names.index(placement.name) + 1 :]
    return {"TIER": placement.name} | ({"NEXT_TIER": higher[0]} if higher else {})


def _multi_edge(spec: MultiEdgeInferenceServiceSpec, placement: Placement) -> dict[str, str]:
    """Return the variables of a multi-edge service's worker about itself and the other workers."""
    variables = {
        "APPLICATION": _json(spec.application),
        "PART": placement.name,
        "MEMBERS": _json([worker.name for worker in spec.edge_workers]),
        "CAMERAS": _json(cameras(spec)),
        "JOINT": "cloud" if spec.cloud_worker else "members",
    }
    if isinstance(placement.worker, MemberWorker):
        variables |= {"SOURCE": _json(source_of(placement.worker)), "DEADLINE_MS": str(placement.worker.deadline_ms)}
    return variables


def _json(value: Any) -> str:
    """Return a value as JSON text, the form of variables with structure."""
    return msgspec.json.encode(value).decode()
