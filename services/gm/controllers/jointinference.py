"""Joint inference services: what all services with workers have in common, the seed's neptune.io form translated once,
and Models chosen by selector.
"""

from __future__ import annotations

from typing import Any

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.jointinference import PLURAL
from halimede.api.neptune import native, to_sedna
from halimede.messages import Status
from services.gm.controllers.base import register
from services.gm.controllers.workers import WorkersController, roles_of
from services.gm.index import Entry
from services.gm.selection import selectors, settled


@register(PLURAL)
class JointInferenceController(WorkersController):
    """The rules of joint inference services."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> Entry:
        """Translate if need be, and put the names of the chosen Models in place of selectors."""
        resource = parse(to_sedna(resource)) if resource.kind.api_version == NEPTUNE else native(resource)
        made = settled(resource, status)
        return Entry(made, roles_of(made), selects=bool(selectors(resource)))
