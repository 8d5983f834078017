"""Datasets go to the edge nodes of the services that name them: to their own node, if they name one.

Whether the data is there is the node's affair; a Dataset is Ready once it exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from halimede.api import Resource
from halimede.api.dataset import PLURAL
from halimede.messages import Status
from services.gm.controllers.actions import Delivery, Send
from services.gm.controllers.base import Observed, forget, register
from services.gm.index import Entry
from services.gm.status import conclude
from services.gm.tally import Verdict
from services.gm.workloads.objects import Built


@register(PLURAL)
class DatasetController:
    """The rules of datasets."""

    def entry(self, resource: Resource[Any]) -> Entry:
        """A dataset names nothing."""
        return Entry(resource)

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send it to the nodes that need it and have it."""
        placed = {node: roles for node, roles in observed.placed.items() if has(desired, node)}
        for node in placed:
            yield Send(node, desired)
        yield from forget(desired, replace(observed, placed=placed))

    def build(self, desired: Resource[Any], observed: Observed) -> None:
        """It needs no pods."""

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:  # noqa: ARG002
        """It exists."""
        generation = desired.metadata.generation
        return conclude(Status(), Verdict("Ready", "Exists", ""), observed.status, generation, observed.now)


def has(dataset: Resource[Any], node: str) -> bool:
    """Whether the data is on this node, as far as the resource says."""
    return dataset.spec.node_name in {"", node}
