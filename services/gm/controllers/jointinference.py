"""Joint inference services: what all services with workers have in common, the seed's neptune.io form translated once,
Models chosen by selector, and tiers between edge and cloud, each of which has its own word in the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.jointinference import PLURAL
from halimede.api.neptune import native, to_sedna
from halimede.api.placement import Placement, placements
from halimede.messages import Metric, Status
from services.gm.controllers import per_worker_status
from services.gm.controllers.base import Observed, register
from services.gm.controllers.model_selection import selectors, settled
from services.gm.controllers.worker_service import WorkersController, roles_of
from services.gm.reference_index import ReferenceEntry
from services.gm.workloads.deployments import Built

#: what workers behind the edge count, of a service with tiers: the beginning of the metric, field
COUNTS = {"served": "served", "deferred": "deferred", "uploadedBytes": "uploaded_bytes"}


@register(PLURAL)
class JointInferenceController(WorkersController):
    """The rules of joint inference services."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Translate if need be, and put the names of the chosen Models in place of selectors."""
        resource = parse(to_sedna(resource)) if resource.kind.api_version == NEPTUNE else native(resource)
        made = settled(resource, status)
        return ReferenceEntry(made, roles_of(made), selects=bool(selectors(resource)))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; of a service with tiers say of each worker how it fares, and what each tier did."""
        status = super().status(desired, observed, built)
        if not desired.spec.tiers:
            return status
        places = placements(desired.spec)
        return msgspec.structs.replace(
            status,
            workers=per_worker_status.workers(desired, places, observed, pods=built is not None),
            metrics=[*status.metrics, *_by_tier(places[1:], observed)],
        )


def _by_tier(places: Iterable[Placement], observed: Observed) -> Iterator[Metric]:
    """Yield what each tier behind the edge has counted, those of nodes included that have left."""
    told = [
        (per_worker_status.part_of(worker), worker.task_info)
        for report in observed.reports.values()
        for worker in report.status.workers
        if worker.task_info
    ]
    for place in places:
        infos = [info for part, info in told if part == place.name]
        for key, field in COUNTS.items():
            if key == "served" or place.program == "tier":  # the last one asks nobody
                yield Metric(key=f"{key}.{place.name}", value=str(sum(getattr(info, field) for info in infos)))
