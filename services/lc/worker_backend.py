"""The interface of a node's workers to the controller, for processes and pods.

Two kinds: processes that this node starts and looks after (``supervisor.py``), and pods, which somebody else runs and
which only speak (``pods/workers.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path
from typing import Protocol

from halimede.messages import NodeStatus, WorkerInfo, WorkerReport
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.planning.plan import ObservedWorker, Plan
from services.lc.planning.resource_state import ResourceState


class WorkerBackend(Protocol):
    """What both kinds give. ``restarts`` are workers started again since the controller's start."""

    restarts: int

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """The workers that plans may stop."""

    @property
    def models(self) -> Collection[Path | str] | None:
        """The models that workers of this node use, or may use, by path or digest; None: not known yet."""

    def adopt(self) -> None:
        """Take over what was there before this controller, before anything else is done."""

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return what has to run as long as the controller does."""

    def carry_out(self, plan: Plan) -> None:
        """Do what a plan says about workers."""

    def heard(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Take what a worker says of itself; return its service, None if it is not one of ours."""

    def status(self, standing: ResourceState) -> NodeStatus:
        """Return the report on a resource."""

    def reports(self) -> list[WorkerReport]:
        """Return how all workers stand now."""

    def busy(self, service: Key) -> bool:
        """Whether a worker of a service still runs that this node has to see the end of."""

    def clear_away(self, service: Key) -> None:
        """Remove what the workers of a forgotten service have left here."""

    async def stop_all(self) -> None:
        """End what ends with the controller, and wait for it."""
