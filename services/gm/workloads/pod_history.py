"""Remembers of a service's pods, from one reconciliation to the next, how long they start and how often they fail.

Kubernetes makes a new pod at once in place of one that a node refuses or evicts, five a second if each one fails. So
after a few failures a worker's next pod waits: on average one pod a minute fails. No pod that has a node is ended for
that. Times are of a monotonic clock; a GM that has just become the leader begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from halimede.names import Key
from services.gm.workloads.object_names import TEMPLATE, worker_of
from services.gm.workloads.pod_status import failure_of, has_failed, is_live, is_ready, newest

#: seconds after which a pod that is not ready yet is late, and between two looks at a late one
LATE_S, RECHECK_S = 30.0, 10.0
#: seconds for one failed pod; failures after which the next pod waits, and the number from which it may start again
FAILED_S, BURST, CALM = 60.0, 2.0, 1.0
#: no worker waits longer than for so many failures
MAX_LEVEL = 10.0


@dataclass(frozen=True, slots=True)
class PodBackoff:
    """How the next pod of a worker is made to wait.

    Attributes:
        template: the digest of the pod template that it is about; another one is tried at once.
        pods: the number of its pods that have a node and live: the worker gets no more.
        gated: pods of an older template live and none of this one. As an update would end the old ones in favour of the
            new ones whatever the number is, the number stays, and new pods are not scheduled.
        failure: how the last pod failed.

    """

    template: str
    pods: int
    gated: bool
    failure: str


@dataclass(slots=True)
class _Failures:
    """The recent failures of a worker's pods of one template: each one fades within a minute."""

    template: str
    counted: set[str] = field(default_factory=set)
    level: float = 0.0
    at: float = 0.0
    must_wait: bool = False
    last: Mapping[str, Any] = field(default_factory=dict)

    def observe(self, failed: Mapping[str, Mapping[str, Any]], now: float) -> None:
        self.level = max(0.0, self.level - (now - self.at) / FAILED_S)
        self.at = now
        self.level = min(MAX_LEVEL, self.level + len(failed.keys() - self.counted))
        self.counted = set(failed)
        self.last = newest(failed.values()) if failed else self.last
        self.must_wait = self.level > (CALM if self.must_wait else BURST)


@dataclass(slots=True)
class _Service:
    began: dict[str, float] = field(default_factory=dict)
    failures: dict[str, _Failures] = field(default_factory=dict)


class PodHistory:
    """By service: when each pod that is not ready began, and the failures of each worker."""

    def __init__(self) -> None:
        self._services: dict[Key, _Service] = {}

    def observe(self, key: Key, pods: Iterable[Mapping[str, Any]], templates: Mapping[str, str], now: float) -> None:
        """Record a service's pods as they are ``now``; ``templates`` has the digest of each worker's present one."""
        pods, service = tuple(pods), self._services.setdefault(key, _Service())
        waiting = {uid for pod in pods if is_live(pod) and not is_ready(pod) for uid in [pod["metadata"]["uid"]]}
        service.began = {uid: service.began.get(uid, now) for uid in waiting}
        failed: dict[str, dict[str, Mapping[str, Any]]] = {}
        for pod in pods:
            if has_failed(pod) and _template_of(pod) == templates.get(worker_of(pod)):
                failed.setdefault(worker_of(pod), {})[pod["metadata"]["uid"]] = pod
        for worker, template in templates.items():
            failures, now_failed = service.failures.get(worker), failed.get(worker, {})
            if failures is None or failures.template != template:
                # those that failed before this GM looked may be old
                failures = service.failures[worker] = _Failures(template, counted=set(sorted(now_failed)[1:]), at=now)
            failures.observe(now_failed, now)
        for worker in service.failures.keys() - templates.keys():
            del service.failures[worker]

    def late_pods(self, key: Key, now: float) -> frozenset[str]:
        """Return the uids of a service's pods that have not been ready for long."""
        service = self._services.get(key)
        began = service.began if service else {}
        return frozenset(uid for uid, since in began.items() if now - since >= LATE_S)

    def backoffs(self, key: Key, pods: Iterable[Mapping[str, Any]]) -> dict[str, PodBackoff]:
        """Return the workers whose new pods have to wait.

        Those of an update that fails on some nodes, and that starts or runs on others, are not among them: nothing
        short of ending pods that work would make the others wait.
        """
        service, pods = self._services.get(key), tuple(pods)
        backoffs = {}
        for worker, recent in service.failures.items() if service else ():
            if recent.must_wait:
                own = [_template_of(pod) for pod in pods if worker_of(pod) == worker and _is_placed(pod)]
                present = own.count(recent.template)
                if present in {0, len(own)}:
                    backoffs[worker] = PodBackoff(recent.template, present, len(own) > present, failure_of(recent.last))
        return backoffs

    def due_at(self, key: Key, now: float) -> float | None:
        """Return when the service has to be looked at again though nothing has changed; None: it need not."""
        service = self._services.get(key)
        if service is None:
            return None
        times = [now + RECHECK_S if now - began >= LATE_S else began + LATE_S for began in service.began.values()]
        times += [f.at + (f.level - CALM) * FAILED_S for f in service.failures.values() if f.must_wait]
        return min(times, default=None)

    def forget(self, key: Key) -> None:
        """Drop a service that was deleted."""
        self._services.pop(key, None)


def _template_of(pod: Mapping[str, Any]) -> str | None:
    """Return the digest of the template that a pod was made from."""
    template: str | None = pod["metadata"].get("labels", {}).get(TEMPLATE)
    return template


def _is_placed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod lives and has a node."""
    return is_live(pod) and bool(pod.get("spec", {}).get("nodeName"))
