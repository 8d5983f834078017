"""The parsed resources of this node (``ParsedResources``), and its Models as services see them (``Models``).

``Models.find`` returns a Model with its local file, or why it is missing (``LocalPhase``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from halimede.api import Resource, dataset, model, parse
from halimede.api.base import SEDNA
from halimede.api.placement import SERVICES, Placement, placements
from halimede.api.podtemplate import may_run_own_code
from halimede.errors import InvalidFieldError
from halimede.messages import ModelOutput
from halimede.models import FetchError, local_path, redact
from halimede.names import Key
from services.lc.planning.resource_state import ABSENT, LocalPhase, Phase, Preparation
from services.lc.store import NodeResource

#: a Model, and the preparation of its file, whose ``path`` is not None
PreparedModel = tuple[Resource[Any], Preparation]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Models:
    """Finds Models and Datasets among the resources of this node, for the services that name them.

    Attributes:
        items: all resources that the node holds.
        preparations: the progress of the files of Models and Datasets.
        ready: those of them that are Ready for the present spec.

    """

    items: Mapping[Key, ParsedResource]
    preparations: Mapping[Key, Preparation]
    ready: Mapping[Key, Preparation]

    def present(self, placement: Placement, service: Key) -> list[ParsedResource]:
        """Return the Models that a worker of a service names and that the node holds, also unreadable ones."""
        keys = (Key(model.PLURAL, service.namespace, name) for name in placement.models)
        return [self.items[key] for key in keys if key in self.items]

    def output(self, placement: Placement, service: Key) -> tuple[ModelOutput, ...]:
        """Return the Models that a worker of a service names, as a report has them; only readable ones."""
        return tuple(output(item.resource) for item in self.present(placement, service) if item.resource)

    def find(self, name: str, service: Key, node: str) -> PreparedModel | LocalPhase:
        """Return a Model that a worker of a service needs, with its local file, or why it is missing.

        ``name``: of the Model. ``node``: the name of this node, for messages.
        """
        key = Key(model.PLURAL, service.namespace, name)
        item, prepared = self.items.get(key), self.ready.get(key)
        if item is None:
            return LocalPhase("Pending", ABSENT, f"Model {key.name} is not yet on node {node}")
        if item.resource is None:
            return LocalPhase("Failed", "ModelNotReady", f"Model {key.name}: {item.error}")
        if prepared is None or prepared.path is None:
            preparation = self.preparations.get(key)
            phase: Phase = "Failed" if preparation and preparation.phase == "Failed" else "Pending"
            progress = preparation.message if preparation and preparation.message else "waiting for its download"
            return LocalPhase(phase, "ModelNotReady", f"Model {key.name}: {progress}")
        return item.resource, prepared

    def users(self, key: Key, node: str) -> Iterator[bool]:
        """Yield one value for each worker of this node that needs the file of the Model ``key``.

        The value is whether the worker may run a user's code.
        """
        items = (item for item in self.items.values() if item.stored.key.namespace == key.namespace)
        services = (item.resource for item in items if item.resource and item.stored.key.plural in SERVICES)
        for service in services:
            for placement in placements(service.spec):
                if placement.pod.node_name in {"", node} and key.name in placement.needs.values():
                    yield may_run_own_code(placement.worker.template)

    def data(self, placement: Placement, service: Resource[Any]) -> Path | LocalPhase | None:
        """Return the path of a worker's Dataset, or why the worker must wait for it; None: it has no path.

        It has none if the worker names no Dataset, if the node does not hold the Dataset, or if its url is remote: a
        worker does not wait for data elsewhere, so that it starts without a network.
        """
        if not placement.dataset:
            return None
        key = Key(dataset.PLURAL, service.key.namespace, placement.dataset)
        item, preparation = self.items.get(key), self.preparations.get(key)
        if key in self.ready:
            return self.ready[key].path
        if item is None or (item.resource and _is_remote(item.resource.spec.url)):
            return None
        why = item.error if item.resource is None else preparation.message if preparation else ""
        return LocalPhase("Pending", "DatasetNotReady", f"Dataset {key.name}: {why or 'not counted yet'}")

    def described_models(self, placement: Placement, service: Key, node: str) -> dict[str, Resource[Any]] | LocalPhase:
        """Return the Models of which a worker needs only the spec, by purpose, or why one is missing."""
        models: dict[str, Resource[Any]] = {}
        for purpose, name in placement.described.items():
            item = self.items.get(Key(model.PLURAL, service.namespace, name))
            if item is None:
                return LocalPhase("Pending", ABSENT, f"Model {name} is not yet on node {node}")
            if item.resource is None:
                return LocalPhase("Failed", "ModelNotReady", f"Model {name}: {item.error}")
            models[purpose] = item.resource
        return models


def _is_remote(url: str) -> bool:
    """Whether a URL names no file of the node; False for an invalid one."""
    try:
        return local_path(url) is None
    except FetchError:
        return False


def output(resource: Resource[model.ModelSpec]) -> ModelOutput:
    """Return a Model as a report has it: its format, and its URL without secrets."""
    return ModelOutput(format=resource.spec.format, url=redact(resource.spec.url))


@dataclass(frozen=True, slots=True)
class ParsedResource:
    """A resource that the node holds, in its typed form.

    Attributes:
        stored: as GM has sent it.
        resource: the typed form; None: it cannot be read.
        error: why it cannot be read; empty: it can.
        reason: the same in one word, for a condition.

    """

    stored: NodeResource
    resource: Resource[Any] | None
    error: str = ""
    reason: str = "InvalidResource"


class ParsedResources:
    """A cache of parsed resources that follows the store: each stored object is parsed once."""

    def __init__(self) -> None:
        self._items: dict[Key, ParsedResource] = {}

    def read(self, resources: Mapping[Key, NodeResource]) -> Mapping[Key, ParsedResource]:
        """Return the parsed form of all resources that the node holds, and drop those of others."""
        self._items = {key: self._item(stored) for key, stored in resources.items()}
        return self._items

    def _item(self, stored: NodeResource) -> ParsedResource:
        """Return the parsed form of a resource, from the cache if it has not changed."""
        item = self._items.get(stored.key)
        if item and item.stored is stored:
            return item
        try:
            resource = parse(stored.body)
        except InvalidFieldError as error:
            return ParsedResource(stored, None, str(error))
        except Exception:  # an unexpected error in one resource must not stop the others
            log.exception("resource not read", key=str(stored.key))
            return ParsedResource(stored, None, "it could not be read, by an error in LC: see its log", "Internal")
        if resource.kind.api_version != SEDNA:
            text = f"apiVersion: {resource.kind.api_version} is for GM: nodes take {SEDNA}"
            return ParsedResource(stored, None, text)
        return ParsedResource(stored, resource)
