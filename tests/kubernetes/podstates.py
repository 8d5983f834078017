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
    return {**_started(pod, ready=True), "hostIP": HOST}


def unready(pod: Body) -> Body:
    """All containers run; the readiness probe does not succeed yet."""
    return _started(pod, ready=False)


def pending(pod: Body) -> Body:
    """Nothing has happened yet."""
    return {"phase": "Pending"}


def failed(pod: Body) -> Body:
    """It has ended and does not come back."""
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    return {"phase": "Failed", "reason": "Evicted", "containerStatuses": _containers(pod, state, ready=False)}


def _started(pod: Body, *, ready: bool) -> Body:
    containers = _containers(pod, {"running": {"startedAt": now()}}, ready=ready)
    states = conditions(ready=ready, initialized=True)
    return {"phase": "Running", "startTime": now(), "conditions": states, "containerStatuses": containers}


def _containers(pod: Body, state: Body, *, ready: bool) -> list[Body]:
    return [
        {"name": each["name"], "image": each["image"], "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        for each in pod["spec"]["containers"]
    ]


def conditions(*, ready: bool, initialized: bool) -> list[Body]:
    """Return the conditions of a pod that has a node."""
    kinds = {"PodScheduled": True, "Initialized": initialized, "ContainersReady": ready, "Ready": ready}
    return [{"type": kind, "status": str(holds)} for kind, holds in kinds.items()]


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
