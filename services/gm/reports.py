"""The last report of each node on each resource (``NodeReports``): the basis of every status.

A uid is the life of a resource: only reports on the present uid are kept. Counts of samples stay when a node no longer
holds the resource, and while a restarted worker has not reported counts yet. Changes are taken in batches to be stored
(``take_dirty``), so that a thousand reports a second are one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from halimede.bus.ordering import SequenceNumber
from halimede.messages import NodeStatus, Output, TaskInfo
from halimede.names import Key
from services.gm.cluster.port import NodeReport

#: the sequence number (connection and count) of a report that has none: earlier than any other
UNKNOWN = SequenceNumber()


class NodeReports:
    """The last reports, by resource and by node."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[str, NodeReport]] = {}
        #: reports that have changed since ``take_dirty``
        self._dirty: dict[tuple[Key, str], NodeReport] = {}
        #: the sequence number of the last report, by node and resource
        self._stamps: dict[str, dict[Key, SequenceNumber]] = {}
        #: the resources that each node has reported on
        self._keys: dict[str, set[Key]] = {}

    def restore(self, reports: Iterable[NodeReport], uids: Mapping[Key, str]) -> None:
        """Add the stored reports of resources that still exist; ``uids`` has the uid of each of them."""
        for report in reports:
            if uids.get(report.key) == report.status.uid:
                self._keep(report)

    def of(self, key: Key) -> Mapping[str, NodeReport]:
        """Return the last reports on a resource, by node; none for an unknown resource."""
        return self._by_key.get(key, {})

    def take(self, key: Key, node: str, status: NodeStatus, stamp: SequenceNumber = UNKNOWN) -> bool:
        """Keep a report on the resource's present uid; return False if a later one has arrived before.

        ``stamp``: the sequence number that orders the reports of a node.
        """
        stamps = self._stamps.setdefault(node, {})
        if stamp.is_overtaken_by(stamps.get(key, UNKNOWN)):
            return False
        old = self._by_key.get(key, {}).get(node)
        if old is not None and old.status.uid != status.uid:
            old = None
        if old is not None and old.live and old.status.observed_generation > status.observed_generation:
            return False
        stamps[key] = stamp
        edge = any(worker.role == "edge" for worker in status.workers) or (old is not None and old.edge)
        self._put(NodeReport(key, node, _with_counts(status, old), live=True, edge=edge))
        return True

    def mark_cleared(self, key: Key, node: str) -> None:
        """Record that a node no longer holds a resource: its report is not live, and its counts stay."""
        old = self._by_key.get(key, {}).get(node)
        if old is not None and old.live:
            self._put(replace(old, live=False))

    def task_infos(self, key: Key, *, edge_only: bool = True) -> list[TaskInfo]:
        """Return the counts of samples that nodes have reported on a resource.

        ``edge_only``: only of nodes with an edge worker, because a sample is counted where it was accepted.
        """
        reports = self.of(key).values()
        return [report.task_info for report in reports if report.task_info and (report.edge or not edge_only)]

    def workers(self) -> Counter[str]:
        """Return the number of workers that each node runs, by its last reports; 0 for an unknown node."""
        counted: Counter[str] = Counter()
        for reports in self._by_key.values():
            for node, report in reports.items():
                if report.live:
                    counted[node] += len(report.status.workers)
        return counted

    def begin_epoch(self, node: str, epoch: int) -> None:
        """Forget a node's stamps of higher epochs than that of its present connection.

        A node that lost its store counts its connections anew: its reports would else count as overtaken.
        """
        stamps = self._stamps.get(node, {})
        for key in [key for key, stamp in stamps.items() if stamp.epoch > epoch]:
            del stamps[key]

    def uncleared_keys(self, node: str, holds: Mapping[Key, str]) -> list[Key]:
        """Return the resources of a node's live reports that it does not hold: GM missed that these were cleared.

        ``holds``: the uids of all resources that the node holds.
        """
        return [
            key
            for key in self.keys(node)
            if (report := self._by_key[key][node]).live and holds.get(key) != report.status.uid
        ]

    def drop(self, key: Key) -> None:
        """Drop the reports and counts of a deleted resource."""
        for node in self._by_key.pop(key, {}):
            self._keys[node].discard(key)
            self._stamps.get(node, {}).pop(key, None)
            self._dirty.pop((key, node), None)

    def keys(self, node: str) -> set[Key]:
        """Return the resources that a node has reported on."""
        return set(self._keys.get(node, ()))

    def drop_node(self, node: str) -> set[Key]:
        """Drop the reports of a node that a user removed; return the resources that it had reported on."""
        keys = self._keys.pop(node, set())
        self._stamps.pop(node, None)
        for key in keys:
            del self._by_key[key][node]
            self._dirty.pop((key, node), None)
        return keys

    def take_dirty(self) -> tuple[NodeReport, ...]:
        """Return the reports that have changed since the last call, to be stored."""
        dirty, self._dirty = self._dirty, {}
        return tuple(dirty.values())

    def put_back(self, reports: Iterable[NodeReport]) -> None:
        """Mark reports that could not be stored as changed again, unless newer ones have arrived."""
        self._dirty = {(report.key, report.node): report for report in reports} | self._dirty

    def _put(self, report: NodeReport) -> None:
        """Keep a new report, and mark it as changed."""
        self._keep(report)
        self._dirty[report.key, report.node] = report

    def _keep(self, report: NodeReport) -> None:
        """Keep a report in place of an earlier one of its node and resource."""
        self._by_key.setdefault(report.key, {})[report.node] = report
        self._keys.setdefault(report.node, set()).add(report.key)


def _with_counts(status: NodeStatus, old: NodeReport | None) -> NodeStatus:
    """Return a report, with the counts of the previous one (``old``) if it has none."""
    counts = old.task_info if old else None
    if counts is None or (status.output and status.output.task_info):
        return status
    output = status.output or Output()
    return msgspec.structs.replace(status, output=msgspec.structs.replace(output, task_info=counts))
