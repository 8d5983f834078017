"""What the bridge has received of a halimede system: retained messages by key, and what operators may ask for.

Retained messages that were cleared while the bridge was away are noticed: what has not arrived on a connection for
long is dropped (``RetainedMirror``).
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from halimede.bridges.homeassistant.occupancy import OccupancyView
from halimede.messages import CameraStatus, GmPresence, HardSample, NodeInfo, Presence, StatusDocument
from halimede.names import Key

K = TypeVar("K", bound=Hashable)
M = TypeVar("M")
#: most services, nodes and cameras, each, that become devices
MAX_DEVICES = 500
#: most Models and TrainingModels together
MAX_MODELS = 100
#: least seconds between two counts of uploaded bytes that are remembered, and the window of the rate
UPLOAD_STEP_S, UPLOAD_WINDOW_S = 600.0, 86_400.0
#: least seconds of counts for a rate
LEAST_RATE_S = 60.0


class RetainedMirror(Generic[K, M]):
    """Retained messages of one kind by key, at most ``limit``; further ones are ignored and counted."""

    def __init__(self, limit: int) -> None:
        #: the last message of each key
        self.entries: dict[K, M] = {}
        #: messages that were ignored because there were too many
        self.ignored = 0
        self._limit = limit
        #: the number of the connection on which each message has arrived last
        self._connections: dict[K, int] = {}

    def put(self, key: K, body: M, connection: int) -> None:
        """Record a message of a connection, if there is space for it."""
        if key not in self.entries and len(self.entries) >= self._limit:
            self.ignored += 1
            return
        self.entries[key] = body
        self._connections[key] = connection

    def drop(self, key: K) -> None:
        """Remove the message of a key, if there is one."""
        self.entries.pop(key, None)
        self._connections.pop(key, None)

    def stale(self, connection: int) -> list[K]:
        """Return the keys of messages that have not arrived on a connection: they no longer exist."""
        return [key for key, number in self._connections.items() if number < connection]


@dataclass(slots=True)
class UploadWindow:
    """The uploaded bytes of one service over the last day: (seconds of the loop's clock, bytes), the oldest first.

    ``uid``: of the service. ``points``: counts in steps of ``UPLOAD_STEP_S``. ``newest``: the last count.
    """

    uid: str
    points: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=int(UPLOAD_WINDOW_S / UPLOAD_STEP_S) + 1)
    )
    newest: tuple[float, int] = (0.0, 0)

    def record(self, now: float, uploaded: int) -> None:
        """Record a count; a smaller one than before is that of new workers, with which the window begins again."""
        if self.points and uploaded < self.newest[1]:
            self.points.clear()
        if not self.points or now - self.points[-1][0] >= UPLOAD_STEP_S:
            self.points.append((now, uploaded))
        self.newest = now, uploaded

    @property
    def bytes_a_day(self) -> float | None:
        """The rate in bytes per day since the oldest point; None: it is too new."""
        if not self.points:
            return None
        seconds = self.newest[0] - self.points[0][0]
        return (self.newest[1] - self.points[0][1]) / seconds * 86_400 if seconds >= LEAST_RATE_S else None


#: namespace and name of a camera, and the node of the worker that reads it; the node is empty for a camera process
CameraKey = tuple[str, str, str]


@dataclass(slots=True)
class SystemView:
    """What the bridge has received.

    Attributes:
        services, models: status documents of inference services; of Models and TrainingModels.
        nodes: presences by node.
        cameras: statuses of cameras.
        pictures: the last hard sample of each service.
        uploads: uploaded bytes of each service.
        manager: GM's presence; None: nothing was received.
        has_control: whether the bridge may use an operator's rights.
        on_kubernetes: GM leaves changes to kubectl.
        infos: GM's answers about nodes, with an operator's rights.
        budgets: with them too: of each service the generation of its spec, and the share of uploads (0..1); None: it
            has no budget.
        without_budget: services that cannot have a budget, because their costs decide.
        occupancy: who is in front of which camera.
        problem: the last problem of the bridge, for people; empty: none.

    """

    services: RetainedMirror[Key, StatusDocument] = field(default_factory=lambda: RetainedMirror(MAX_DEVICES))
    models: RetainedMirror[Key, StatusDocument] = field(default_factory=lambda: RetainedMirror(MAX_MODELS))
    nodes: RetainedMirror[str, Presence] = field(default_factory=lambda: RetainedMirror(MAX_DEVICES))
    cameras: RetainedMirror[CameraKey, CameraStatus] = field(default_factory=lambda: RetainedMirror(MAX_DEVICES))
    pictures: dict[Key, HardSample] = field(default_factory=dict)
    uploads: dict[Key, UploadWindow] = field(default_factory=dict)
    manager: GmPresence | None = None
    has_control: bool = False
    on_kubernetes: bool = False
    infos: dict[str, NodeInfo] = field(default_factory=dict)
    budgets: dict[Key, tuple[int, float | None]] = field(default_factory=dict)
    without_budget: set[Key] = field(default_factory=set)
    occupancy: OccupancyView = field(default_factory=OccupancyView)
    problem: str = ""

    @property
    def ignored(self) -> int:
        """How often something was ignored because there was too much to show: messages, and sensors in them."""
        mirrors = (self.services, self.models, self.nodes, self.cameras)
        return sum(mirror.ignored for mirror in mirrors) + self.occupancy.ignored

    def record_status(self, now: float, key: Key, document: StatusDocument, connection: int) -> None:
        """Record the status of an inference service at ``now``, if there is space for it."""
        self.services.put(key, document, connection)
        if key not in self.services.entries:
            return
        window = self.uploads.get(key)
        if window is None or window.uid != document.uid:
            window = self.uploads[key] = UploadWindow(document.uid)
        window.record(now, int(metric_of(document, "uploadedBytes") or 0))

    def forget_service(self, key: Key) -> None:
        """Remove all that was recorded of a service."""
        self.services.drop(key)
        self.uploads.pop(key, None)
        self.pictures.pop(key, None)
        self.budgets.pop(key, None)
        self.without_budget.discard(key)


def metric_of(document: StatusDocument, key: str) -> float | None:
    """Return the number of a metric in a status; None: there is none, or it is no finite number."""
    text = next((metric.value for metric in document.status.metrics if metric.key == key), "")
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    return None
