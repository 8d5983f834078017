"""Reads what a controller sees of one resource: its status, nodes, reports and references at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from halimede.api import Resource
from halimede.errors import HalimedeError
from halimede.names import Key
from services.gm.cluster.port import Cluster, StoredResource, utc_now
from services.gm.controllers.base import CONTROLLERS, Observed, Pods
from services.gm.downstream.queue import Downstream
from services.gm.nodes import Nodes
from services.gm.reference_index import ReferenceEntry, ReferenceIndex, Roles
from services.gm.reports import NodeReports
from services.gm.worker_readiness import Problem
from services.gm.workloads.pod_settings import PodSettings


class SnapshotReader:
    """Reads, and changes nothing. ``pods``: whether the cluster runs workers as pods."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Nodes,
        reports: NodeReports,
        index: ReferenceIndex,
        downstream: Downstream,
        *,
        pods: bool,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._reports = reports
        self._index = index
        self._downstream = downstream
        self._pods = pods
        #: what kept objects from being made, when it was last tried
        self.troubles: dict[Key, tuple[Problem, ...]] = {}

    def at(self, stored: StoredResource, entry: ReferenceEntry, node: str | None = None) -> Observed:
        """Look at a resource, on all nodes or (for who shall hold what) on one alone."""
        key = stored.key
        placed: Mapping[str, Roles]
        if node is None:
            placed, holders = self._index.placed(key), self._downstream.holders(key)
        else:
            roles = self._index.belongs(key, node)
            placed = {} if roles is None else {node: roles}
            holders = frozenset({node}) if self._downstream.holds(key, node) else frozenset()
        if not stored.deleting:
            # a node whose labels are not known yet is left as it is
            holders = frozenset(holder for holder in holders if self._nodes.described(holder))
        return Observed(
            now=utc_now(),
            asked=stored.resource,
            status=stored.status,
            placed=placed,
            holders=holders,
            nodes=self._nodes,
            reports=self._reports.of(key),
            references={reference: self._existing(reference) for reference in entry.references},
            models=tuple(self._index.models(key.namespace)) if entry.selects else (),
            unheld=self._unheld(key, entry) if self._pods else (),
            as_pods=self._pods,
        )

    async def at_pods(self, observed: Observed, entry: ReferenceEntry, settings: PodSettings) -> Observed:
        """Look at what the cluster has of a service besides, and at the Secrets that it names."""
        key = entry.resource.key
        workers = self._cluster.workers(key)
        observed = replace(observed, pods=Pods(workers, settings))
        wanted = CONTROLLERS[key.plural].secret_names(entry.resource, observed)
        troubles = self.troubles.get(key, ())
        secrets: Mapping[str, dict[str, Any] | None] = {}
        try:
            secrets = await self._cluster.secrets(key.namespace, wanted)
        except HalimedeError as error:
            # nothing is known of them: what runs is kept
            troubles = (Problem("SecretsNotRead", str(error)), *troubles)
        return replace(observed, pods=Pods(replace(workers, secrets=secrets), settings, troubles))

    def _existing(self, key: Key) -> Resource[Any] | None:
        entry = self._index.get(key)
        return entry.resource if entry and entry.resource.metadata.deletion_timestamp is None else None

    def _unheld(self, key: Key, entry: ReferenceEntry) -> tuple[StoredResource, ...]:
        found = (self._cluster.get(each) for each in sorted({key, *entry.references}))
        return tuple(stored for stored in found if stored and not stored.held and not stored.deleting)
