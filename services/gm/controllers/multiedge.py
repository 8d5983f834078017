"""Multi-edge inference services: several edge workers with names of their own, and one where findings come together.

Several of them may be of one role and on one node, so besides what is said of all services each worker has its own
word in the status, in the seed's form: phase, and output with models and task info.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.multiedge import PLURAL
from halimede.api.placement import placements
from halimede.messages import ModelOutput, Output, Status, TaskInfo
from halimede.stats.totals import add_up
from services.gm.cluster.port import NodeReport
from services.gm.controllers import per_worker_status
from services.gm.controllers.base import Observed, register
from services.gm.controllers.worker_service import WorkersController
from services.gm.workloads.deployments import Built


@register(PLURAL)
class MultiEdgeController(WorkersController):
    """The rules of multi-edge inference services."""

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods, and say of each worker how it fares."""
        status = super().status(desired, observed, built)
        places = placements(desired.spec)
        models = [list(per_worker_status.models_of(desired, place, observed)) for place in places]
        counted = [info for report in observed.reports.values() if (info := _counts(report)) and report.edge]
        return msgspec.structs.replace(
            status,
            workers=per_worker_status.workers(desired, places, observed, pods=built is not None),
            output=Output(
                models=_once(models), task_info=per_worker_status.plain(add_up(counted)) if counted else None
            ),
        )


def _once(models: Iterable[Iterable[ModelOutput]]) -> list[ModelOutput]:
    found = {(model.format, model.url): model for several in models for model in several}
    return list(found.values())[:64]


def _counts(report: NodeReport) -> TaskInfo | None:
    return report.status.output.task_info if report.status.output else None
