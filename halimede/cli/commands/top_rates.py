"""What ``top`` knows: the newest word of everyone who speaks, and rates from the counts in between. Pure.

A status document says how things stand until the next one comes, so the count at the beginning of a window is that of
the last document before it; whoever says nothing new has counted nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from halimede.cli.commands import status_advice
from halimede.messages import GmPresence, Load, NodeInfo, Peer, Presence, StatusDocument

#: seconds over which a rate is taken
WINDOW_S = 5.0
#: documents kept of one service: GM sends at most one a second
MOST_POINTS = 32


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The counts of a service at a time."""

    time: float
    frames: int
    uploads: float


@dataclass(slots=True)
class ServiceRates:
    """A service's newest document, and its counts until then."""

    document: StatusDocument
    points: deque[RatePoint] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))

    def rate(self, now: float, read: Callable[[RatePoint], float]) -> float:
        """Return how much was counted a second, over the last ``WINDOW_S`` or as long as it is known."""
        last, start = self.points[-1], now - WINDOW_S
        base = self.points[0]
        for point in self.points:
            if point.time <= start:
                base = point
        seconds = now - max(base.time, start)
        return max(0.0, read(last) - read(base)) / seconds if seconds > 0 else 0.0


@dataclass(slots=True)
class TopState:
    """Everything that was heard."""

    #: by plural, namespace and name
    services: dict[tuple[str, str, str], ServiceRates] = field(default_factory=dict)
    loads: dict[tuple[str, str, str], Load] = field(default_factory=dict)
    peers: dict[tuple[str, str, str], Peer] = field(default_factory=dict)
    presences: dict[str, Presence] = field(default_factory=dict)
    infos: dict[str, NodeInfo] = field(default_factory=dict)
    gm: GmPresence | None = None

    def take(self, now: float, document: StatusDocument, plural: str = "") -> None:
        """Take a status document of a kind (``plural``). Another uid is another service: its counts start anew."""
        key = plural, document.namespace, document.name
        known = self.services.get(key)
        if known is None or known.document.uid != document.uid:
            known = self.services[key] = ServiceRates(document)
        known.document = document
        known.points.append(_point(now, document))

    def view(self, now: float, sort: str) -> dict[str, Any]:
        """Return what there is to show, as plain data."""
        services = [_service(now, each) for each in self.services.values()]
        services.sort(key=SORTS[sort])
        return {
            "gm": {"online": self.gm.online, "version": self.gm.version, "epoch": self.gm.epoch} if self.gm else None,
            "nodes": [self._node(name) for name in sorted({*self.presences, *self.infos})],
            "services": services,
            "cloudWorkers": [
                {
                    "namespace": namespace,
                    "service": service,
                    "worker": worker,
                    "credits": load.credits,
                    "serviceMs": round(load.service_ms, 2),
                }
                for (namespace, service, worker), load in sorted(self.loads.items())
            ],
            "peers": [
                {
                    "namespace": namespace,
                    "service": service,
                    "worker": worker,
                    "rank": peer.rank,
                    "credits": peer.share.credits if peer.share else 0,
                    "serviceMs": round(peer.share.service_ms, 2) if peer.share else None,
                    "joint": peer.join is not None,
                }
                for (namespace, service, worker), peer in sorted(self.peers.items())
            ],
        }

    def _node(self, name: str) -> dict[str, Any]:
        presence, info = self.presences.get(name), self.infos.get(name)
        online = presence.online if presence else bool(info and info.online)
        return {
            "name": name,
            "status": ("online" if online else "offline") + (",drained" if info and info.drained else ""),
            "services": info.resources if info else 0,
            "workers": info.workers if info else 0,
            # a will does not repeat what the birth said
            "version": (presence.version if presence else "") or (info.version if info else ""),
        }


def _point(now: float, document: StatusDocument) -> RatePoint:
    infos = [node.task_info for node in document.status.nodes if node.task_info]
    uploads = sum(info.upload_cloud_ratio * info.inference_number for info in infos)
    return RatePoint(now, int(_metrics(document).get("inferenceNumber", "0")), uploads)


def _service(now: float, service: ServiceRates) -> dict[str, Any]:
    document = service.document
    counts, status = _metrics(document), document.status
    infos = [node.task_info for node in status.nodes if node.task_info]
    return {
        "namespace": document.namespace,
        "name": document.name,
        "phase": status.phase,
        "reason": status.conditions[-1].reason if status.conditions else "",
        "framesPerSecond": round(service.rate(now, lambda point: point.frames), 2),
        "uploadsPerSecond": round(service.rate(now, lambda point: point.uploads), 2),
        "uploadRatio": float(counts.get("uploadCloudRatio", "0")),
        "frames": int(counts.get("inferenceNumber", "0")),
        "degraded": int(counts.get("degraded", "0")),
        "lost": int(counts.get("lost", "0")),
        "queued": sum(info.queued for info in infos),
        "edgeP50Ms": _number(counts, "edgeLatencyP50Ms"),
        "edgeP99Ms": _number(counts, "edgeLatencyP99Ms"),
        "offloadP50Ms": _number(counts, "offloadLatencyP50Ms"),
        "offloadP99Ms": _number(counts, "offloadLatencyP99Ms"),
    }


def _metrics(document: StatusDocument) -> dict[str, str]:
    return {metric.key: metric.value for metric in document.status.metrics}


def _number(counts: Mapping[str, str], key: str) -> float | None:
    return float(counts[key]) if key in counts else None


def _name(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["namespace"], row["name"]


def _phase(row: Mapping[str, Any]) -> int:
    return status_advice.WORST_FIRST.index(row["phase"]) if row["phase"] in status_advice.WORST_FIRST else 0


#: by what services are sorted; those that are equal by name
SORTS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "phase": lambda row: (_phase(row), *_name(row)),
    "name": _name,
    "rate": lambda row: (-row["framesPerSecond"], *_name(row)),
    "upload": lambda row: (-row["uploadsPerSecond"], *_name(row)),
    "latency": lambda row: (-(row["edgeP99Ms"] or 0.0), *_name(row)),
}
