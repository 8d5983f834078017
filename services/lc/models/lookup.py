"""The parsed resources of this node, and its Models as services see them: present, or missing with the reason."""

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
from services.lc.planning.resource_state import ABSENT, Lack, Phase, Preparation
from services.lc.store import NodeResource

Found = tuple[Resource[Any], Preparation]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Models:
    """The Models of this node, for the services that name them."""

    items: Mapping[Key, ParsedResource]
    preparations: Mapping[Key, Preparation]
    ready: Mapping[Key, Preparation]

    def held(self, placement: Placement, service: Key) -> list[ParsedResource]:
        """Return the Models that a worker of a service needs and that the node holds."""
        keys = (Key(model.PLURAL, service.namespace, name) for name in placement.models)
        return [self.items[key] for key in keys if key in self.items]

    def output(self, placement: Placement, service: Key) -> tuple[ModelOutput, ...]:
        """Return those Models for a report: only those that are held and can be read."""
        return tuple(output(used.resource) for used in self.held(placement, service) if used.resource)

    def find(self, name: str, service: Key, node: str) -> Found | Lack:
        """Return a Model that a worker needs with its local file, or the reason why it is missing."""
        key = Key(model.PLURAL, service.namespace, name)
        used, prepared = self.items.get(key), self.ready.get(key)
        if used is None:
            return Lack("Pending", ABSENT, f"Model {key.name} is not yet on node {node}")
        if used.resource is None:
            return Lack("Failed", "ModelNotReady", f"Model {key.name}: {used.error}")
        if prepared is None or prepared.path is None:
            known = self.preparations.get(key)
            phase: Phase = "Failed" if known and known.phase == "Failed" else "Pending"
            progress = known.message if known and known.message else "waiting for its download"
            return Lack(phase, "ModelNotReady", f"Model {key.name}: {progress}")
        return used.resource, prepared

    def users(self, key: Key, node: str) -> Iterator[bool]:
        """Yield for each worker of this node that needs the file of a Model whether it may run code of its own."""
        items = (item for item in self.items.values() if item.held.key.namespace == key.namespace)
        services = (item.resource for item in items if item.resource and item.held.key.plural in SERVICES)
        for service in services:
            for placement in placements(service.spec):
                here = placement.pod.node_name in {"", node}
                if here and key.name in placement.needs.values():
                    yield may_run_own_code(placement.worker.template)

    def data(self, placement: Placement, service: Resource[Any]) -> Path | Lack | None:
        """Return the files of a worker's Dataset, or why it must wait for them; None: the node has no such files.

        It does not wait for data elsewhere, so that it starts without a network.
        """
        if not placement.dataset:
            return None
        key = Key(dataset.PLURAL, service.key.namespace, placement.dataset)
        used, known = self.items.get(key), self.preparations.get(key)
        if key in self.ready:
            return self.ready[key].path
        if used is None or (used.resource and _elsewhere(used.resource.spec.url)):
            return None
        why = used.error if used.resource is None else known.message if known else ""
        return Lack("Pending", "DatasetNotReady", f"Dataset {key.name}: {why or 'not counted yet'}")

    def described(self, placement: Placement, service: Key, node: str) -> dict[str, Resource[Any]] | Lack:
        """Return the Models of which a worker needs only the spec, by purpose, or the reason why one is missing."""
        found: dict[str, Resource[Any]] = {}
        for what, name in placement.described.items():
            used = self.items.get(Key(model.PLURAL, service.namespace, name))
            if used is None:
                return Lack("Pending", ABSENT, f"Model {name} is not yet on node {node}")
            if used.resource is None:
                return Lack("Failed", "ModelNotReady", f"Model {name}: {used.error}")
            found[what] = used.resource
        return found


def _elsewhere(url: str) -> bool:
    """Whether a URL names no file of the node."""
    try:
        return local_path(url) is None
    except FetchError:
        return False


def output(resource: Resource[model.ModelSpec]) -> ModelOutput:
    """Return a Model for a report, without secrets in its URL."""
    return ModelOutput(format=resource.spec.format, url=redact(resource.spec.url))


@dataclass(frozen=True, slots=True)
class ParsedResource:
    """A held resource with its typed form, or with its error and the reason for a condition."""

    held: NodeResource
    resource: Resource[Any] | None
    error: str = ""
    reason: str = "InvalidResource"


class ParsedResources:
    """A cache of parsed resources that follows the store: each body is parsed once for each uid and generation."""

    def __init__(self) -> None:
        self._items: dict[Key, ParsedResource] = {}

    def read(self, held: Mapping[Key, NodeResource]) -> Mapping[Key, ParsedResource]:
        """Return the parsed form of all held resources."""
        self._items = {key: self._item(one) for key, one in held.items()}
        return self._items

    def _item(self, held: NodeResource) -> ParsedResource:
        known = self._items.get(held.key)
        if known and known.held is held:
            return known
        try:
            resource = parse(held.body)
        except InvalidFieldError as error:
            return ParsedResource(held, None, str(error))
        except Exception:  # an unexpected error in one resource must not stop the others
            log.exception("resource not read", key=str(held.key))
            return ParsedResource(held, None, "it could not be read, by an error in LC: see its log", "Internal")
        if resource.kind.api_version != SEDNA:
            return ParsedResource(held, None, f"apiVersion: {resource.kind.api_version} is for GM: nodes take {SEDNA}")
        return ParsedResource(held, resource)
