"""States in which a kubelet (or the scheduler) leaves a pod, as their status says them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

Body = dict[str, Any]
#: what a pod's status becomes, made for one pod
State = Callable[[Body], Body]
#: the address of every node
HOST = "192.0.2.10"


def running(pod: Body) -> Body:
    """All containers run and are ready."""
    ready = _containers(pod, {"running": {"startedAt": _now()}}, ready=True)
    return {
        "phase": "Running",
        "startTime": _now(),
        "hostIP": HOST,
        "conditions": _conditions(ready=True),
        "containerStatuses": ready,
    }


def unready(pod: Body) -> Body:
    """All containers run; the readiness probe does not succeed yet."""
    containers = _containers(pod, {"running": {"startedAt": _now()}}, ready=False)
    return {
        "phase": "Running",
        "startTime": _now(),
        "conditions": _conditions(ready=False),
        "containerStatuses": containers,
    }


def pending(pod: Body) -> Body:
    """Nothing has happened yet."""
    return {"phase": "Pending"}


def unschedulable(pod: Body) -> Body:
    """No node takes it."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
    }
    return {"phase": "Pending", "conditions": [condition]}


def crash_loop(pod: Body) -> Body:
    """Its containers start and end again."""
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    containers = [{**each, "restartCount": 7} for each in _containers(pod, state, ready=False)]
    return {"phase": "Running", "conditions": _conditions(ready=False), "containerStatuses": containers}


def image_pull(pod: Body) -> Body:
    """Its image cannot be had."""
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    return {
        "phase": "Pending",
        "conditions": _conditions(ready=False),
        "containerStatuses": _containers(pod, state, ready=False),
    }


def failed(pod: Body) -> Body:
    """It has ended and does not come back."""
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    return {"phase": "Failed", "reason": "Evicted", "containerStatuses": _containers(pod, state, ready=False)}


def _containers(pod: Body, state: Body, *, ready: bool) -> list[Body]:
    return [
        {"name": each["name"], "image": each["image"], "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        for each in pod["spec"]["containers"]
    ]


def _conditions(*, ready: bool) -> list[Body]:
    said = "True" if ready else "False"
    kinds = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": said, "Ready": said}
    return [{"type": kind, "status": status} for kind, status in kinds.items()]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
