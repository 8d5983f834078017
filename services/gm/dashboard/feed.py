"""The data of GM's web page as plain values (``DashboardFeed``): recorded once a second, kept for two minutes.

Everything is bounded: of a thousand nodes the page shows those with problems first. Latencies and rates are those of
the last seconds, from the difference of two records: totals would hide a change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import structlog

from halimede import __version__
from halimede.answer_text import describe_occupancy
from halimede.api.placement import camera_readers
from halimede.api.trainingmodel import PLURAL as TRAINING_MODELS
from halimede.bus import Bus, Delivery
from halimede.errors import BusError
from halimede.health_checks.facts import BusFacts
from halimede.health_checks.registry import examine
from halimede.learning_loop.states import State
from halimede.messages import Box, CameraStatus, HardSample, Histogram, TaskInfo
from halimede.messages.samples import MAX_LABEL_TEXT
from halimede.names import Key
from halimede.stats import histogram
from halimede.topics import CAMERA_STATUS, HARD_SAMPLE, NODE_CAMERA_STATUS
from services.gm.cluster.port import Cluster, Editor, StoredResource, services_of
from services.gm.control_plane import ControlPlane
from services.gm.service_status import metrics

log = structlog.get_logger()
#: seconds between two records, most points in a chart, and records over which a latency is computed
EVERY, HISTORY, WINDOW = 1.0, 120, 10
#: seconds between two computations of the problems: their checks describe all nodes, of which there may be thousands
PROBLEMS_EVERY = 5.0
#: most rows of each section of the page
MOST_SERVICES, MOST_NODES, MOST_EVENTS, MOST_SAMPLES, MOST_CAMERAS, MOST_PROBLEMS = 50, 200, 100, 24, 64, 100
#: most statuses of cameras that are kept
MAX_CAMERA_STATUSES = 1000
#: last rounds of a learning loop that a page shows
SHOWN_ROUNDS = 5
#: pages that may be open at a time
MOST_WATCHERS = 16
#: order of rows by phase: those with problems first
URGENCY = {"Failed": 0, "Degraded": 1, "Pending": 2, **dict.fromkeys(get_args(State), 3), "Running": 3, "Done": 4}
#: order of cameras by state: those with problems first; one without a state publishes frames itself
CAMERA_URGENCY = {"failed": 0, "gone": 1, "stalled": 2, "connecting": 3, "running": 4, "": 5, "stopped": 6}
#: most bytes of a character in JSON: of a control character, as in \u001b
MAX_CHARACTER_BYTES = 6
#: content types of pictures, by their first three bytes
MAGIC = {b"\xff\xd8\xff": "image/jpeg", b"\x89PN": "image/png"}

#: a row of a section, as JSON for the page
Row = dict[str, Any]


@dataclass(slots=True)
class _History:
    """One service's last two minutes: its counts at the last records, and the points of its charts (``point``)."""

    records: deque[TaskInfo] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    points: deque[list[float | None]] = field(default_factory=lambda: deque(maxlen=HISTORY))


class DashboardFeed:
    """Collects the data of the page: ``start`` it, run ``run``, and read ``encoded`` (the data) and ``picture``.

    ``editor``: has the events; None on Kubernetes, where they are with the objects.
    """

    def __init__(self, bus: Bus, cluster: Cluster, plane: ControlPlane, editor: Editor | None) -> None:
        self._bus = bus
        self._cluster = cluster
        self._plane = plane
        self._editor = editor
        #: by key and uid of a service
        self._histories: dict[tuple[Key, str], _History] = {}
        #: previews of the last hard samples, and their services (namespace/name), by the sample's id in hexadecimal
        self._samples: OrderedDict[str, HardSample] = OrderedDict()
        self._services: dict[str, str] = {}
        #: by namespace, name and node of a camera; the node is empty for a camera process
        self._cameras: dict[tuple[str, str, str], CameraStatus] = {}
        #: the last preview of each camera, by namespace and name
        self._pictures: OrderedDict[tuple[str, str], HardSample] = OrderedDict()
        self._follows_cameras = False
        #: set, and replaced, at each record
        self._recorded = asyncio.Event()
        #: number of open pages
        self._watchers = 0
        #: the sections as JSON, encoded once for all open pages
        self._encoded: dict[str, bytes] = {}
        #: of the section with the problems: the event loop's time when it is due, and the last JSON
        self._problems_due, self._encoded_problems = 0.0, b"[]"

    async def start(self) -> None:
        """Subscribe to the previews of hard samples: small pictures that workers publish."""
        await self._bus.subscribe(HARD_SAMPLE.filter(), self._on_preview, queue=MOST_SAMPLES)

    async def run(self) -> None:
        """Record once a second, until cancelled; receive the states of cameras while a page is open."""
        while True:
            if bool(self._watchers) != self._follows_cameras and self._bus.connected:
                await self._follow_cameras()
            self.record()
            await asyncio.sleep(EVERY)

    async def _follow_cameras(self) -> None:
        """Begin or end to receive the states of cameras, which are received only while a page is open."""
        follow = bool(self._watchers)  # pages open and close meanwhile
        try:
            for topic in (CAMERA_STATUS, NODE_CAMERA_STATUS):
                await self._bus.unsubscribe(topic.filter())  # an attempt before may have ended half-way
                if follow:
                    await self._bus.subscribe(
                        topic.filter(), self._on_camera, queue=MAX_CAMERA_STATUSES, cleared=self._camera_gone
                    )
        except BusError as error:
            log.debug("cameras not followed", error=str(error))
            return
        self._follows_cameras = follow
        if not follow:
            self._cameras.clear()

    def record(self) -> None:
        """Record the counts of the shown services, encode the sections for open pages, and wake the pages that wait."""
        histories = {}
        for stored in self._shown_services():
            history = self._histories.get((stored.key, stored.uid)) or _History()
            histories[stored.key, stored.uid] = history
            history.records.append(self._counts(stored.key))
            history.points.append(point(history.records))
        self._histories = histories  # deleted services are dropped
        if self._watchers:
            self._encode()
        self._recorded.set()
        self._recorded = asyncio.Event()

    @contextlib.contextmanager
    def count_page(self) -> Iterator[bool]:
        """Count a page as open inside the block; yield False, and do not count it, if 16 are open already."""
        if self._watchers >= MOST_WATCHERS:
            yield False
            return
        self._watchers += 1
        if self._watchers == 1:
            self._encode()
        try:
            yield True
        finally:
            self._watchers -= 1

    @property
    def encoded(self) -> Mapping[str, bytes]:
        """The JSON of each section, by its name, as of the last record while a page was open."""
        return self._encoded

    def _encode(self) -> None:
        """Encode all sections for the open pages."""
        now, encode = asyncio.get_running_loop().time(), msgspec.json.encode
        if now >= self._problems_due:
            self._problems_due = now + PROBLEMS_EVERY
            self._encoded_problems = encode(self._problems())
        sections = {name: encode(content) for name, content in self._quick_sections().items()}
        self._encoded = {**sections, "problems": self._encoded_problems}

    async def wait_for_record(self) -> None:
        """Wait for the next record, at most a second while ``run`` runs."""
        await self._recorded.wait()

    def sections(self) -> dict[str, Any]:
        """Return the data of the page by the names of its sections, computed now."""
        return {**self._quick_sections(), "problems": self._problems()}

    def _quick_sections(self) -> dict[str, Any]:
        """Return all sections but the problems, which take long."""
        return {
            "manager": self._manager(),
            "services": [self._service(stored) for stored in self._shown_services()],
            "nodes": self._nodes(),
            "cameras": self._camera_rows(),
            "samples": self._previews(),
            "events": self._events(),
            "loops": self._loops(),
        }

    def picture(self, sample_id: str) -> tuple[str, bytes] | None:
        """Return content type and bytes of a hard sample's picture; None: it is not kept (any more).

        ``sample_id``: the sample's id in hexadecimal.
        """
        sample = self._samples.get(sample_id)
        sample = sample or next((preview for preview in self._pictures.values() if preview.id.hex() == sample_id), None)
        return (kind_of(sample.data) or "", sample.data) if sample else None

    # --- sections ---------------------------------------------------------------------------------------------

    def _manager(self) -> Row:
        """Return what the page shows of GM itself, with counts of services and nodes."""
        total = sum(1 for _ in services_of(self._cluster))
        nodes = self._plane.nodes
        return {
            "version": __version__,
            "epoch": self._cluster.epoch,
            "broker": self._bus.connected,
            "services": total,
            "nodes": len(nodes),
            "online": sum(node.online and not node.drained for node in nodes.values()),
            "drained": sum(node.drained for node in nodes.values()),
            "every": EVERY,
        }

    def _problems(self) -> list[Row]:
        """Return the checks of the system that are not well."""
        cameras = [(_camera_topic(key), camera) for key, camera in sorted(self._cameras.items())]
        checks = examine(self._plane.observer.system_facts(BusFacts(cameras=cameras)))
        return [check.fields() for check in checks if check.level != "ok"][:MOST_PROBLEMS]

    def _shown_services(self) -> list[StoredResource]:
        """Return the services that the page shows, those with problems first."""
        services = services_of(self._cluster)
        ranked = sorted(services, key=lambda s: (URGENCY.get(s.status.phase if s.status else "", 2), s.key))
        return ranked[:MOST_SERVICES]

    def _service(self, stored: StoredResource) -> Row:
        """Return what the page shows of a service, with the points of its charts."""
        status = stored.status
        history = self._histories.get((stored.key, stored.uid)) or _History()
        current = status.conditions[-1] if status and status.conditions else None
        counts = self._counts(stored.key)
        return {
            "namespace": stored.key.namespace,
            "name": stored.key.name,
            "uid": stored.uid,
            "phase": "Deleting" if stored.deleting else (status.phase if status else "Pending"),
            "reason": current.reason if current else "",
            "message": current.message if current else "",
            "overload": status.overload if status else "",
            "active": status.active if status else 0,
            "failed": status.failed if status else 0,
            "queued": counts.queued,
            "metrics": {m.key: m.value for m in metrics(self._plane.reports.task_infos(stored.key))}
            | {m.key: m.value for m in (status.metrics if status else []) if "ccuracy" in m.key or "audit" in m.key},
            "points": list(history.points),
            "nodes": [
                {"node": n.node, "online": n.online, "phase": n.phase, "reason": n.reason, "workers": n.workers}
                for n in (status.nodes[:MOST_NODES] if status else [])
            ],
        }

    def _loops(self) -> list[Row]:
        """Return the learning loops, each with its last rounds, the latest first."""
        trainings = [s for s in self._cluster.resources(TRAINING_MODELS) if s.status and s.status.loop]
        rows = []
        for stored in trainings[:MOST_SERVICES]:
            assert stored.status is not None  # noqa: S101  # selected above
            loop, current = stored.status.loop or {}, stored.status.conditions[-1]
            rows.append(
                {
                    "namespace": stored.key.namespace,
                    "name": stored.key.name,
                    "service": stored.resource.spec.loop.service.name if stored.resource.spec.loop else "",
                    "phase": stored.status.phase,
                    "reason": current.reason,
                    "message": current.message,
                    **{name: loop.get(name) for name in ("round", "base", "version", "rolledOut", "refused")},
                    "history": list(reversed(loop.get("history") or []))[:SHOWN_ROUNDS],
                }
            )
        return rows

    def _nodes(self) -> list[Row]:
        """Return the nodes, those that are offline first."""
        return [
            {
                "name": node.name,
                "online": node.online,
                "drained": node.drained,
                "version": node.presence.version if node.presence else "",
                "cpus": node.presence.cpus if node.presence else 0,
                "memory": node.presence.memory_bytes if node.presence else 0,
                "labels": [f"{k}={v}" if v else k for k, v in sorted(node.labels.items())[:8]],
                "resources": len(self._plane.downstream.keys(node.name)),
            }
            for node in sorted(self._plane.nodes.values(), key=lambda n: (n.online, n.name))[:MOST_NODES]
        ]

    def _camera_rows(self) -> list[Row]:
        """Return the cameras that report, that services name, or of which there is a preview; problems first."""
        readers = camera_readers(stored.resource.body for stored in services_of(self._cluster))
        reported = {key[:2] for key in self._cameras}
        silent = {(*key, ""): CameraStatus(camera=key[1], state="running") for key in {**readers, **self._pictures}}
        rows = [(key, status, True) for key, status in self._cameras.items()]
        rows += [(key, status, False) for key, status in silent.items() if key[:2] not in reported]
        rows.sort(key=lambda row: (CAMERA_URGENCY[row[1].state if row[2] else ""], row[0]))
        return [
            {
                "namespace": key[0],
                "name": key[1],
                "node": status.node or key[2],
                "state": status.state if reports else "",
                "reason": status.reason,
                "error": status.error,
                "source": status.source,
                "fps": status.fps,
                "frames": status.frames,
                "skipped": status.skipped,
                "width": status.width,
                "height": status.height,
                "lastFrame": status.last_frame,
                "services": readers.get(key[:2], [])[:MOST_SERVICES],
                "picture": self._pictures[key[:2]].id.hex() if key[:2] in self._pictures else "",
            }
            for key, status, reports in rows[:MOST_CAMERAS]
        ]

    def _previews(self) -> list[Row]:
        """Return the previews of hard samples, the latest first."""
        return [
            {
                "id": id_,
                "service": self._services.get(id_, ""),
                "camera": s.camera,
                "file": s.file,
                "node": s.node,
                "time": s.captured_ns // 1_000_000,
                "ms": s.total_ms,
                "by": s.by,
                "degraded": s.degraded,
                "reason": s.reason,
                "hardness": s.hardness,
                "cut": s.cut,
                "edge": s.edge_label,
                "edgeScore": s.edge_score,
                "edgeBoxes": s.edge_boxes,
                "edgeCount": s.edge_count,
                "label": s.label,
                "score": s.score,
                "boxes": s.boxes,
                "count": s.count,
            }
            for id_, s in reversed(self._samples.items())
        ]

    def _events(self) -> list[Row]:
        """Return the latest events of GM (none on Kubernetes) and of occupancy, the newest first."""
        recorded = self._editor.events(0, "", MOST_EVENTS) if self._editor else ()
        rows = [
            {"time": e.time, "type": e.type, "reason": e.reason, "about": e.about, "message": e.message, "n": e.count}
            for e in reversed(recorded)
        ]
        rows += [
            {
                "time": received.time,
                "type": "Normal",
                "reason": received.event.type.capitalize(),
                "about": str(received.key),
                "message": _bound_labels([describe_occupancy(received.event)])[0],
                "n": 1,
            }
            for received in self._plane.occupancy.latest
        ]
        return sorted(rows, key=lambda row: row["time"], reverse=True)

    # --- counting ---------------------------------------------------------------------------------------------

    def _counts(self, key: Key) -> TaskInfo:
        """Return the counts of a service on all nodes together."""
        return total(self._plane.reports.task_infos(key))

    async def _on_preview(self, delivery: Delivery[HardSample]) -> None:
        """Keep a preview, unless its picture has an unknown format."""
        if kind_of(delivery.body.data) is None:
            return
        sample = with_bounded_labels(delivery.body)
        id_, camera = sample.id.hex(), (delivery.names["ns"], sample.camera)
        if sample.camera:
            self._pictures[camera] = sample
            self._pictures.move_to_end(camera)
        if len(self._pictures) > MOST_CAMERAS:
            self._pictures.popitem(last=False)
        self._samples[id_] = sample
        self._services[id_] = f"{delivery.names['ns']}/{delivery.names['service']}"
        self._samples.move_to_end(id_)
        while len(self._samples) > MOST_SAMPLES:
            oldest, _ = self._samples.popitem(last=False)
            self._services.pop(oldest, None)

    async def _on_camera(self, delivery: Delivery[CameraStatus]) -> None:
        """Keep the status of a camera, unless there are too many of other cameras."""
        key = camera_key(delivery.names)
        if key in self._cameras or len(self._cameras) < MAX_CAMERA_STATUSES:
            self._cameras[key] = delivery.body.without_secrets()

    async def _camera_gone(self, names: Mapping[str, str]) -> None:
        """Drop the status of a camera whose topic was cleared."""
        self._cameras.pop(camera_key(names), None)


def camera_key(names: Mapping[str, str]) -> tuple[str, str, str]:
    """Return namespace, camera and node by the names in a topic; the node is empty for a camera process."""
    return names["ns"], names["camera"], names.get("node", "")


def _camera_topic(key: tuple[str, str, str]) -> str:
    """Return the topic of a camera's status as text; ``key``: as ``camera_key`` returns it."""
    namespace, camera, node = key
    if node:
        return NODE_CAMERA_STATUS.at(node=node, ns=namespace, camera=camera).text
    return CAMERA_STATUS.at(ns=namespace, camera=camera).text


def kind_of(data: bytes) -> str | None:
    """Return the content type of an encoded picture by its first bytes; None: it is neither JPEG nor PNG."""
    return MAGIC.get(data[:3])


def with_bounded_labels(sample: HardSample) -> HardSample:
    """Return a preview whose labels are cut to few bytes as JSON: pages get all previews again and again.

    The labels of all boxes of one answer together have at most as many bytes as the label of a class.
    """
    return msgspec.structs.replace(
        sample,
        edge_label=_bound_labels([sample.edge_label])[0],
        label=_bound_labels([sample.label])[0],
        edge_boxes=_with_bounded_labels(sample.edge_boxes),
        boxes=_with_bounded_labels(sample.boxes),
    )


def _with_bounded_labels(boxes: Sequence[Box] | None) -> list[Box] | None:
    """Return boxes whose labels are cut; None for None."""
    if boxes is None:
        return None
    labels = _bound_labels([str(box.label) for box in boxes])
    return [msgspec.structs.replace(box, label=label) for box, label in zip(boxes, labels, strict=True)]


def _bound_labels(labels: Sequence[str]) -> list[str]:
    """Return labels that have at most ``MAX_LABEL_TEXT`` bytes together; if they have more, each is cut."""
    if sum(map(_bytes_of, labels)) <= MAX_LABEL_TEXT:
        return list(labels)
    share = MAX_LABEL_TEXT // len(labels)
    return [
        label[:share] if _bytes_of(label[:share]) <= share else label[: share // MAX_CHARACTER_BYTES]
        for label in labels
    ]


def _bytes_of(text: str) -> int:
    """Return the bytes of a text in JSON, without its quotes."""
    return len(msgspec.json.encode(text)) - 2


def total(infos: Iterable[TaskInfo]) -> TaskInfo:
    """Return the sums of the counts, and the merged latencies, that the charts need."""
    counted = list(infos)
    return TaskInfo(
        inference_number=sum(i.inference_number for i in counted),
        cloud_inference_number=sum(i.cloud_inference_number for i in counted),
        degraded=sum(i.degraded for i in counted),
        queued=sum(i.queued for i in counted),
        edge_latency=histogram.merge(i.edge_latency for i in counted),
        offload_latency=histogram.merge(i.offload_latency for i in counted),
    )


def point(records: deque[TaskInfo]) -> list[float | None]:
    """Return a point of the charts from a service's last records (at least one).

    It has answers/s and cloud answers/s since the record before, then the median and the 99th percentile (ms) of the
    edge's latency and of the cloud's, over all records (None without answers). A count that fell belongs to a worker
    that restarted: the rate is then 0, and not negative.
    """
    now, before, first = records[-1], records[-2] if len(records) > 1 else records[-1], records[0]
    rates: list[float | None] = [
        max(now.inference_number - before.inference_number, 0) / EVERY,
        max(now.cloud_inference_number - before.cloud_inference_number, 0) / EVERY,
    ]
    for later, earlier in ((now.edge_latency, first.edge_latency), (now.offload_latency, first.offload_latency)):
        recent = _since(later, earlier)
        rates += [_round(histogram.quantile(recent, share)) for share in (0.5, 0.99)]
    return rates


def _since(later: Histogram | None, earlier: Histogram | None) -> Histogram:
    """Return the distribution of what was added between two histograms."""
    old: Mapping[str, int] = earlier.buckets if earlier else {}
    new: Mapping[str, int] = later.buckets if later else {}
    return Histogram(buckets={k: n - old.get(k, 0) for k, n in new.items() if n > old.get(k, 0)})


def _round(value: float | None) -> float | None:
    """Return a number with three decimals; None for None."""
    return None if value is None else round(value, 3)
