"""The status of a service's pods (``pod_views``), in the terms of ``kubectl``. Pure; pods are plain data of the API.

The fields of a pod become one phase, one reason and one sentence, and whether the pod runs the present template of its
Deployment. The label ``halimede.io/template`` shows that, so that ReplicaSets need not be watched.

Of a node that Kubernetes does not reach, the pods' statuses are old: Kubernetes marks them as not ready, whatever runs
there. Then the last report of the node's local controller counts, also for the seconds until the node has reported its
pods again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from halimede.api.jointinference import MOST_COMMITTEE_MEMBERS
from halimede.errors import hide_secrets
from services.gm.cluster.port import Ref
from services.gm.workloads.object_names import ROLES, TEMPLATE, WORKER, WORKER_TYPE, Role, worker_of

#: the phase of a pod
Phase = Literal["Running", "Pending", "Failed"]
#: names of the init containers that bring files before the worker starts: the model, the detector, the calibration, a
#: training's archive and its initial weights, and the models of a committee
FETCH, FETCH_DETECTOR, FETCH_CALIBRATION = "fetch", "fetch-detector", "fetch-calibration"
FETCH_ARCHIVE, FETCH_INITIAL = "fetch-archive", "fetch-initial"
FETCH_COMMITTEE = tuple(f"fetch-committee{number}" for number in range(1, MOST_COMMITTEE_MEMBERS + 1))
FETCHES = frozenset({FETCH, FETCH_DETECTOR, *FETCH_COMMITTEE, FETCH_CALIBRATION, FETCH_ARCHIVE, FETCH_INITIAL})
#: most characters of a message
MAX_MESSAGE = 1024
#: phases of pods that are never restarted
ENDED = frozenset({"Failed", "Succeeded"})
#: the reason of a pod on a node that Kubernetes does not reach
UNREACHED = "NodeUnreachable"
#: reasons of a waiting container that are not problems
STARTING = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a service, or one that could not be created.

    Attributes:
        role: the role of its worker.
        name: of the pod, or of its Deployment if it could not be created.
        node: name of its node; empty: it has none.
        phase: Running once the worker's container runs.
        ready: whether the worker takes samples.
        restarts: number of restarts of the worker's container.
        reason: of the phase, in one word; empty: there is no problem.
        message: of the phase, for users; empty: there is no problem.
        current: whether it was made from the present template of its Deployment.
        worker: the worker's own name within the service; empty: its role is its name.
        unreached: whether Kubernetes does not reach its node; then phase and readiness are those of the node's report.
        leaving: whether it is being deleted.
        late: whether it has been starting for long.

    """

    role: Role
    name: str
    node: str
    phase: Phase
    ready: bool = False
    restarts: int = 0
    reason: str = ""
    message: str = ""
    current: bool = True
    worker: str = ""
    unreached: bool = False
    leaving: bool = False
    late: bool = False

    @property
    def up(self) -> bool:
        """Whether its worker runs and takes samples."""
        return self.phase == "Running" and self.ready

    @property
    def starting(self) -> bool:
        """Whether it is not up, and nothing is known that prevents it."""
        return not self.up and self.phase != "Failed" and self.reason in STARTING | {""}

    @property
    def worker_name(self) -> str:
        """The name of its worker within the service."""
        return self.worker or self.role


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is known of a node besides its pods.

    Attributes:
        unready: why Kubernetes does not reach it; empty: it does.
        running: names of the pods that run by the last report of its local controller; None: there is no such report.
        reason, message: what the service's workers there wait for, by that report; empty: nothing.

    """

    unready: str = ""
    running: frozenset[str] | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of a service's pods besides their statuses.

    Attributes:
        nodes: the nodes of the pods, by name.
        late: the uids of pods that have been starting for long.
        events: (reason, message) of the last warning about late pods, by uid.

    """

    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    events: Mapping[str, tuple[str, str]] = field(default_factory=dict)


NO_POD_FACTS = PodFacts()


def pod_views(
    objects: Mapping[Ref, Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], facts: PodFacts = NO_POD_FACTS
) -> tuple[PodView, ...]:
    """Return the pods of a service, sorted by role, worker and name, also those that could not be created.

    Failed pods that were replaced are left out, and pods that are being deleted on nodes that Kubernetes reaches.
    ``objects``: the service's existing objects. ``pods``: as the API returns them.
    """
    deployments, pods = dict(_deployments(objects)), tuple(pods)
    views = [view for pod in _live_pods(pods, facts) if (view := _view(pod, deployments, facts))]
    views += _failed_views(pods, deployments)
    views += _uncreated_pods(objects)
    return tuple(sorted(views, key=lambda view: (ROLES.index(view.role), view.worker, view.name)))


def _uncreated_pods(objects: Mapping[Ref, Mapping[str, Any]]) -> Iterator[PodView]:
    """Yield a view for each Deployment whose next pod could not be created: by a quota, Pod Security or a webhook."""
    for ref, body in objects.items():
        labels = _metadata(body).get("labels") or {}
        role, worker = labels.get(WORKER_TYPE, ""), labels.get(WORKER, "")
        condition = _condition(body.get("status") or {}, "ReplicaFailure")
        if ref.kind == "Deployment" and role in ROLES and condition.get("status") == "True":
            reason, message = condition.get("reason") or "FailedCreate", _short(condition.get("message") or "")
            yield PodView(
                role=role, name=ref.name, node="", phase="Pending", reason=reason, message=message, worker=worker
            )


def nodes_by_worker(pods: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """Return the names of the nodes of each worker's pods, by the worker's name.

    A pod that is being deleted counts: it still reports. A pod that has failed counts until another one of its worker
    has a node: its node keeps what the service needs.
    """
    nodes: dict[str, set[str]] = {}
    ended: dict[str, set[str]] = {}
    for pod in pods:
        worker, role = worker_of(pod), (_metadata(pod).get("labels") or {}).get(WORKER_TYPE, "")
        if role in ROLES and (node := (pod.get("spec") or {}).get("nodeName")):
            (ended if _has_ended(pod) else nodes).setdefault(worker, set()).add(node)
    return {worker: frozenset(names) for worker, names in (ended | nodes).items()}


def has_started(pod: Mapping[str, Any]) -> bool:
    """Whether a container of a pod has ever run, init containers apart."""
    status = pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ran = (_termination(c) or c.get("restartCount") or "running" in (c.get("state") or {}) for c in statuses)
    return status.get("phase") == "Running" or any(ran)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's condition ``Ready`` is true."""
    return bool(_condition(pod.get("status") or {}, "Ready").get("status") == "True")


def is_live(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has not ended, and is not being deleted."""
    return not _has_ended(pod) and not _metadata(pod).get("deletionTimestamp")


def has_failed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has failed and is never restarted: another one is made in its place."""
    return (pod.get("status") or {}).get("phase") == "Failed" and not _metadata(pod).get("deletionTimestamp")


def newest(pods: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the pod that was made last. Raises ValueError if there is none."""
    return max(pods, key=lambda pod: _metadata(pod).get("creationTimestamp") or "")


def failure_of(pod: Mapping[str, Any]) -> str:
    """Return as text which pod failed, on which node and why."""
    status, node = pod.get("status") or {}, (pod.get("spec") or {}).get("nodeName") or ""
    state = _state_of(status, _worker_first(status.get("containerStatuses") or [], ""))
    where = f" on node {node}" if node else ""
    return f"pod {_metadata(pod).get('name', '')}{where}: {state.reason}: {_short(state.message)}"


def _has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has ended for good."""
    return (pod.get("status") or {}).get("phase") in ENDED


def _live_pods(pods: Iterable[Mapping[str, Any]], facts: PodFacts) -> Iterator[Mapping[str, Any]]:
    """Yield pods that may run: one that is being deleted only where its node cannot know that."""
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName") or ""
        unreached = node in facts.nodes and bool(facts.nodes[node].unready)
        if is_live(pod) or (unreached and not _has_ended(pod)):
            yield pod


def _failed_views(pods: Iterable[Mapping[str, Any]], deployments: Mapping[str, _Deployed]) -> Iterator[PodView]:
    """Yield the last pod of each worker that has failed, until another one of the present template has run.

    Kubernetes keeps failed pods for inspection long after their successors run, and a node may refuse each successor.
    """
    ended: dict[str, list[Mapping[str, Any]]] = {}
    replaced = set()
    for pod in pods:
        worker = worker_of(pod)
        if _metadata(pod).get("deletionTimestamp") or not _is_current(pod, deployments):
            continue
        if _has_ended(pod):
            ended.setdefault(worker, []).append(pod)
        elif has_started(pod):
            replaced.add(worker)
    for worker, several in ended.items():
        if worker not in replaced and (view := _view(newest(several), deployments, NO_POD_FACTS)):
            more = f" ({len(several)} pods have failed)" if len(several) > 1 else ""
            yield replace(view, message=view.message + more)


def _is_current(pod: Mapping[str, Any], deployments: Mapping[str, _Deployed]) -> bool:
    """Whether a pod was made from the present template of its worker's Deployment."""
    deployed = deployments.get(worker_of(pod))
    return deployed is not None and (_metadata(pod).get("labels") or {}).get(TEMPLATE, "") == deployed.template


@dataclass(frozen=True, slots=True)
class _Deployed:
    """The present pod template of a Deployment: its digest, and the name of the worker's container."""

    template: str
    container: str


def _deployments(objects: Mapping[Ref, Mapping[str, Any]]) -> Iterator[tuple[str, _Deployed]]:
    """Yield the name of each worker with a Deployment, and the Deployment's template."""
    for body in objects.values():
        if body.get("kind") != "Deployment":
            continue
        template = (body.get("spec") or {}).get("template") or {}
        labels = (template.get("metadata") or {}).get("labels") or {}
        containers = (template.get("spec") or {}).get("containers") or [{}]
        yield worker_of(body), _Deployed(labels.get(TEMPLATE, ""), containers[0].get("name", ""))


def templates(objects: Mapping[Ref, Mapping[str, Any]]) -> dict[str, str]:
    """Return the digest of the present pod template of each worker that has a Deployment."""
    return {worker: deployed.template for worker, deployed in _deployments(objects)}


def starting_uids(pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the uids of pods that have a node and no container yet that runs: only their events may say why."""
    return frozenset(
        _metadata(pod)["uid"]
        for pod in pods
        if is_live(pod) and (pod.get("spec") or {}).get("nodeName") and not has_started(pod)
    )


@dataclass(frozen=True, slots=True)
class _PodState:
    """The phase of a pod, with a reason in one word and a message; both are empty without a problem."""

    phase: Phase
    reason: str = ""
    message: str = ""


def _view(pod: Mapping[str, Any], deployments: Mapping[str, _Deployed], facts: PodFacts) -> PodView | None:
    """Return the view of a pod; None: its labels name no role."""
    meta, status = _metadata(pod), pod.get("status") or {}
    labels = meta.get("labels") or {}
    role = labels.get(WORKER_TYPE)
    if role not in ROLES:
        return None
    deployed = deployments.get(worker_of(pod))
    node = (pod.get("spec") or {}).get("nodeName") or ""
    containers = _worker_first(status.get("containerStatuses") or [], deployed.container if deployed else "")
    state, ready = _state_of(status, containers), _condition(status, "Ready").get("status") == "True"
    at = facts.nodes.get(node, NodeView())
    posted = _condition(status, "ContainersReady").get("status") == "True"
    works = posted if at.running is None else meta.get("name", "") in at.running
    if at.unready:
        ready = works
        state = _PodState("Running" if ready else "Pending", UNREACHED, at.unready)
    elif posted and at.running and works and state.phase == "Running":
        # not ready: Kubernetes' mark from when it did not reach the node, until the node reports the pod again
        ready = True
    elif state.phase == "Pending" and state.reason in STARTING:
        state = _with_cause(state, at, facts.events.get(meta.get("uid", "")))
    return PodView(
        role=role,
        name=meta.get("name", ""),
        node=node,
        phase=state.phase,
        ready=ready,
        restarts=containers[0].get("restartCount", 0) if containers else 0,
        reason=state.reason,
        message=_short(state.message),
        current=_is_current(pod, deployments),
        worker=labels.get(WORKER, ""),
        unreached=bool(at.unready),
        leaving=bool(meta.get("deletionTimestamp")),
        late=meta.get("uid", "") in facts.late,
    )


def _with_cause(state: _PodState, at: NodeView, event: tuple[str, str] | None) -> _PodState:
    """Return the state of a pod that is being created, with a cause by its last warning, or by its node's report."""
    if event:
        return _PodState("Pending", *event)
    return _PodState("Pending", at.reason, at.message) if at.reason else state


def _state_of(status: Mapping[str, Any], containers: list[Mapping[str, Any]]) -> _PodState:
    """Return the state of a pod; ``containers``: the statuses of its containers, the worker's first."""
    phase = status.get("phase")
    if phase in ENDED:
        ended = next((termination for termination in map(_termination, containers) if termination), None)
        reason = status.get("reason") or (ended.reason if ended else phase)
        message = status.get("message") or (ended.message if ended else "all containers ended")
        return _PodState("Failed", reason, message)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _PodState("Pending", scheduled.get("reason") or "Unschedulable", scheduled.get("message") or "")
    for container in status.get("initContainerStatuses") or []:
        if trouble := _trouble(container, init=True):
            return trouble
    if not containers:
        return _PodState("Pending", "ContainerCreating", "")
    worker = containers[0]
    if trouble := _trouble(worker):
        return trouble
    runs: Phase = "Running" if "running" in (worker.get("state") or {}) else "Pending"
    for container in containers[1:]:
        if trouble := _trouble(container):
            return _PodState(runs, trouble.reason, trouble.message)
    if runs == "Running":
        return _PodState("Running")
    waiting = (worker.get("state") or {}).get("waiting") or {}
    return _PodState("Pending", waiting.get("reason") or "ContainerCreating", waiting.get("message") or "")


def _trouble(container: Mapping[str, Any], *, init: bool = False) -> _PodState | None:
    """Return the problem of a container; None if it runs or is being created, or has ended with success (``init``)."""
    name, state = container.get("name", ""), container.get("state") or {}
    if "running" in state:
        # also a fetcher that tries again after a failure: its last termination is no problem now
        return None
    ended, waiting = _termination(container), state.get("waiting") or {}
    fetch = init and name in FETCHES
    if "terminated" in state:
        if init and state["terminated"].get("exitCode") == 0:
            return None
    elif waiting.get("reason", "ContainerCreating") in STARTING:
        return None
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if ended and (reason in {"", "CrashLoopBackOff"}):
        if fetch:
            return _PodState("Failed", "FetchFailed", ended.message)
        if ended.reason == "OOMKilled":
            return _PodState("Failed", "OOMKilled", f"container {name} exceeded its memory limit: raise the limit")
        return _PodState("Failed", reason or ended.reason, f"container {name}: {ended.message}")
    return _PodState("Failed", reason or "Error", f"container {name}: {message or 'not running'}")


def _termination(container: Mapping[str, Any]) -> _PodState | None:
    """Return how a container ended, now or before its present state; None: it never has."""
    for when in ("state", "lastState"):
        if ended := (container.get(when) or {}).get("terminated"):
            message = (ended.get("message") or "").strip() or f"it ended with exit code {ended.get('exitCode')}"
            return _PodState("Failed", ended.get("reason") or "Error", message)
    return None


def _worker_first(statuses: list[Mapping[str, Any]], worker: str) -> list[Mapping[str, Any]]:
    """Return containers' statuses with that of the container ``worker`` first: the kubelet sorts them by name."""
    return sorted(statuses, key=lambda status: status.get("name") != worker)


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """Return the condition of a type in a status; empty: there is none."""
    return next((c for c in status.get("conditions") or [] if c.get("type") == type_), {})


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of an object."""
    return body.get("metadata") or {}


def _short(text: str) -> str:
    """Return the end of a text, where programs print the error, as one line without secrets."""
    shown = " ".join(hide_secrets(text).split())
    return shown if len(shown) <= MAX_MESSAGE else f"…{shown[-MAX_MESSAGE:]}"
