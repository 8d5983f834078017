"""Remembers how long a service's pods start and how often they fail, between reconciliations (``PodHistory``).

Kubernetes makes a new pod at once in place of one that a node refuses or evicts, five a second if each one fails. So
after a few failures a worker's next pod waits, so that on average at most one pod a minute fails. No pod that has a
node is ended for that. Times are seconds of a monotonic clock; a GM that has just become the leader begins anew.
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
#: seconds in which the count of failures falls by one; counts above which the next pod waits, and at which it may start
FAILED_S, BURST, CALM = 60.0, 2.0, 1.0
#: most failures that count, so that no worker waits longer than for them
MAX_LEVEL = 10.0


@dataclass(frozen=True, slots=True)
class PodBackoff:
    """How the next pod of a worker is made to wait.

    Attributes:
        template: the digest of the pod template that failed; pods of another template are tried at once.
        pods: the number of the worker's pods of this template that have a node and live: it gets no more.
        gated: whether pods of an older template live, and none of this one. An update would end the old ones in favour
            of the new ones, whatever the number is: so the number stays, and new pods are not scheduled.
        failure: how the last pod failed, for users.

    """

    template: str
    pods: int
    gated: bool
    failure: str


@dataclass(slots=True)
class _Failures:
    """The recent failures of a worker's pods of one template.

    Attributes:
        template: the digest of the template.
        counted: uids of the failed pods that are counted.
        level: count of failures, which falls evenly, by one in 60 s.
        observed_at: when ``level`` was computed.
        must_wait: whether the next pod has to wait.
        last: the last pod that failed.

    """

    template: str
    counted: set[str] = field(default_factory=set)
    level: float = 0.0
    observed_at: float = 0.0
    must_wait: bool = False
    last: Mapping[str, Any] = field(default_factory=dict)

    def observe(self, failed: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Record the failed pods that exist now, by uid."""
        self.level = max(0.0, self.level - (now - self.observed_at) / FAILED_S)
        self.observed_at = now
        self.level = min(MAX_LEVEL, self.level + len(failed.keys() - self.counted))
        self.counted = set(failed)
        self.last = newest(failed.values()) if failed else self.last
        self.must_wait = self.level > (CALM if self.must_wait else BURST)


@dataclass(slots=True)
class _Service:
    """A service: when each pod that is not ready was seen first, by uid, and the failures of each worker, by name."""

    began: dict[str, float] = field(default_factory=dict)
    failures: dict[str, _Failures] = field(default_factory=dict)


class PodHistory:
    """The history of the pods of all services. ``now`` is a time of one monotonic clock in each call."""

    def __init__(self) -> None:
        self._services: dict[Key, _Service] = {}

    def observe(self, key: Key, pods: Iterable[Mapping[str, Any]], templates: Mapping[str, str], now: float) -> None:
        """Record a service's pods as they are now; ``templates``: the digest of each worker's present pod template."""
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
                # pods that failed before this GM looked may be old: together they count as one failure
                failures = service.failures[worker] = _Failures(
                    template, counted=set(sorted(now_failed)[1:]), observed_at=now
                )
            failures.observe(now_failed, now)
        for worker in service.failures.keys() - templates.keys():
            del service.failures[worker]

    def late_pods(self, key: Key, now: float) -> frozenset[str]:
        """Return the uids of a service's pods that have been starting for 30 s or longer."""
        service = self._services.get(key)
        began = service.began if service else {}
        return frozenset(uid for uid, since in began.items() if now - since >= LATE_S)

    def backoffs(self, key: Key, pods: Iterable[Mapping[str, Any]]) -> dict[str, PodBackoff]:
        """Return by name the workers whose next pod has to wait, each with how that is done.

        A worker whose update fails on some nodes and works on others is not among them: its next pods could only be
        made to wait by ending pods that work.
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
        """Return the time at which a service must be reconciled though nothing has changed; None: it need not be."""
        service = self._services.get(key)
        if service is None:
            return None
        times = [now + RECHECK_S if now - began >= LATE_S else began + LATE_S for began in service.began.values()]
        times += [f.observed_at + (f.level - CALM) * FAILED_S for f in service.failures.values() if f.must_wait]
        return min(times, default=None)

    def forget(self, key: Key) -> None:
        """Drop the history of a service that was deleted."""
        self._services.pop(key, None)


def _template_of(pod: Mapping[str, Any]) -> str | None:
    """Return the digest of the template that a pod was made from; None: it has no such label."""
    template: str | None = pod["metadata"].get("labels", {}).get(TEMPLATE)
    return template


def _is_placed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod lives and has a node."""
    return is_live(pod) and bool(pod.get("spec", {}).get("nodeName"))
