"""Makes the tables of resources, nodes and events, and the texts of their cells, from bodies and messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from halimede.cli.output import age, table
from halimede.errors import hide_secrets
from halimede.health_checks.resource_fields import condition_text, dig, phase
from halimede.messages import Event, NodeInfo
from halimede.messages.operator import OVERLOAD

#: how labels of a node begin that name its roles
ROLE_PREFIX = "node-role.kubernetes.io/"
#: returns the text of a cell for a resource's body
Cell = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a kind: its title, how its cells are read, and whether only the wide table has it."""

    title: str
    cell: Cell
    wide: bool = False


def _at(*path: str) -> Cell:
    """Return the cell with the value at a path of the body."""

    def read(body: Mapping[str, Any]) -> str:
        return text(dig(body, *path))

    return read


def _metadata(body: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in (dig(body, "spec", "metadata") or {}).items()) or "-"


def _url(body: Mapping[str, Any]) -> str:
    return hide_secrets(text(dig(body, "spec", "url")))


def _metric(key: str) -> Cell:
    """Return the cell with a metric of the status; 0 without it."""

    def read(body: Mapping[str, Any]) -> str:
        return metrics(body).get(key, "0")

    return read


def measure(key: str, value: str) -> str:
    """Return a metric's value with its unit: milliseconds, percent, bytes; other values as they are."""
    try:
        number = float(value)
    except ValueError:
        return value
    if key.endswith("Ms"):
        return f"{number:g} ms"
    if re.search("[rR]atio|[aA]ccuracy", key):
        return f"{number:.1%}"
    return size(int(number)) if "Bytes" in key else value


def metric_name(key: str) -> str:
    """Return a metric's key as words: ``edgeLatencyP50Ms`` is the edge latency p50."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", " ", key.removesuffix("Ms")).lower()


def size(number: int) -> str:
    """Return a number of bytes in a readable unit: B, kB (1000 B), MB, GB or TB."""
    value, unit = float(number), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"


def text(value: Any) -> str:
    """Return a value as the text of a cell; ``-`` for None and the empty text."""
    return "-" if value is None or value == "" else str(value)


def metrics(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics in a resource's status by key, as text."""
    return {str(m.get("key")): str(m.get("value")) for m in dig(body, "status", "metrics") or []}


def overload(body: Mapping[str, Any]) -> str:
    """Return reason and message of the present condition ``Overload``; empty: the cloud takes all hard samples."""
    conditions = dig(body, "status", "conditions") or []
    present = next((c for c in conditions if c.get("type") == OVERLOAD and c.get("status") == "True"), None)
    return f"{present.get('reason')}: {present.get('message')}" if present else ""


def _nodes(body: Mapping[str, Any]) -> str:
    nodes = dig(body, "status", "nodes") or []
    return ",".join(str(n.get("node")) + ("" if n.get("online") else " (offline)") for n in nodes) or "-"


def tiers(body: Mapping[str, Any]) -> list[str]:
    """Return the names of a service's tiers from edge to cloud; empty for a service without tiers between them."""
    between = [str(tier.get("name")) for tier in dig(body, "spec", "tiers") or []]
    return ["edge", *between, "cloud"] if between else []


def running_workers(body: Mapping[str, Any]) -> str:
    """Return the number of running workers of each tier; empty for a service without tiers."""
    names = Counter(w.get("name") for w in dig(body, "status", "workers") or [] if w.get("phase") == "Running")
    return ", ".join(f"{names[tier]} {tier}" for tier in tiers(body))


def _version(body: Mapping[str, Any]) -> str:
    """Return the version that is served: the first of the status."""
    versions = dig(body, "status", "versions") or []
    return text(versions[0].get("version")) if versions else "-"


def _round(body: Mapping[str, Any]) -> str:
    """Return the round of a training and the number of its rounds, of which 20 is the default."""
    training = dig(body, "status", "training") or {}
    return f"{training.get('round') or 0}/{training.get('rounds') or dig(body, 'spec', 'rounds') or 20}"


def _training_metrics(body: Mapping[str, Any]) -> str:
    values = dig(body, "status", "training", "metrics") or []
    return ", ".join(f"{metric.get('key')} {metric.get('value')}" for metric in values) or "-"


#: columns of all kinds
NAME = TableColumn("NAME", _at("metadata", "name"))
STATUS = TableColumn("STATUS", phase)
AGE = TableColumn("AGE", lambda body: age(dig(body, "metadata", "creationTimestamp")))
MESSAGE = TableColumn("MESSAGE", condition_text, wide=True)


def _training_columns(*model: str) -> tuple[TableColumn, ...]:
    """Return the columns of a kind that trains; ``model`` is the path of the Model that gets a version."""
    return (
        NAME,
        STATUS,
        TableColumn("MODEL", _at(*model)),
        TableColumn("ROUND", _round),
        TableColumn("TRAINERS", lambda body: str(dig(body, "status", "training", "trainers") or 0)),
        TableColumn("METRICS", _training_metrics),
        TableColumn("VERSION", _at("status", "training", "version")),
        AGE,
        TableColumn("SENT", lambda body: size(dig(body, "status", "training", "bytes") or 0), wide=True),
        TableColumn("NODES", _nodes, wide=True),
        MESSAGE,
    )


#: the columns of each kind, by its plural
COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "jointinferenceservices": (
        NAME,
        STATUS,
        TableColumn("ACTIVE", lambda body: str(dig(body, "status", "active") or 0)),
        TableColumn("FAILED", lambda body: str(dig(body, "status", "failed") or 0)),
        TableColumn("SAMPLES", _metric("inferenceNumber")),
        TableColumn("EDGE", _metric("edgeInferenceNumber"), wide=True),
        TableColumn("CLOUD", _metric("cloudInferenceNumber"), wide=True),
        TableColumn("UPLOAD", lambda body: measure("uploadCloudRatio", metrics(body).get("uploadCloudRatio", "0"))),
        TableColumn("DEGRADED", _metric("degraded"), wide=True),
        TableColumn("SKIPPED", _metric("skipped"), wide=True),
        TableColumn("LOST", _metric("lost"), wide=True),
        AGE,
        TableColumn("TIERS", lambda body: running_workers(body) or "-", wide=True),
        TableColumn("NODES", _nodes, wide=True),
        MESSAGE,
    ),
    "multiedgeinferenceservices": (
        NAME,
        STATUS,
        TableColumn("APPLICATION", _at("spec", "application", "name")),
        TableColumn("ACTIVE", lambda body: str(dig(body, "status", "active") or 0)),
        TableColumn("FAILED", lambda body: str(dig(body, "status", "failed") or 0)),
        TableColumn("SAMPLES", _metric("inferenceNumber")),
        TableColumn("DEGRADED", _metric("degraded"), wide=True),
        TableColumn("SKIPPED", _metric("skipped"), wide=True),
        TableColumn("LOST", _metric("lost"), wide=True),
        AGE,
        TableColumn("NODES", _nodes, wide=True),
        MESSAGE,
    ),
    "models": (
        NAME,
        STATUS,
        TableColumn("FORMAT", _at("spec", "format")),
        TableColumn("VERSION", _version),
        TableColumn("TASK", _at("spec", "task"), wide=True),
        TableColumn("METADATA", _metadata, wide=True),
        AGE,
        TableColumn("NODES", _nodes, wide=True),
        TableColumn("URL", _url, wide=True),
        MESSAGE,
    ),
    "inferencemodels": (
        NAME,
        STATUS,
        TableColumn("LAYER", _at("spec", "deployToLayer")),
        TableColumn("VERSION", _at("status", "servingVersion")),
        TableColumn("READY", lambda body: str(dig(body, "status", "active") or 0)),
        TableColumn("URL", _at("status", "url")),
        AGE,
        TableColumn("FRAMEWORK", _at("spec", "frameworkType"), wide=True),
        TableColumn("NODES", _nodes, wide=True),
        MESSAGE,
    ),
    "trainingmodels": _training_columns("spec", "model", "name"),
    "federatedlearningjobs": _training_columns("spec", "aggregationWorker", "model", "name"),
    "incrementallearningjobs": _training_columns("spec", "deploySpec", "model", "name"),
    "datasets": (
        NAME,
        STATUS,
        TableColumn("FORMAT", _at("spec", "format")),
        TableColumn("SAMPLES", _at("status", "numberOfSamples")),
        TableColumn("CLASSES", _at("status", "dataset", "numberOfClasses"), wide=True),
        TableColumn("BROKEN", _at("status", "dataset", "numberBroken"), wide=True),
        TableColumn("NODE", _at("spec", "nodeName")),
        AGE,
        TableColumn("URL", _url, wide=True),
        MESSAGE,
    ),
}
#: for kinds without columns of their own
DEFAULT_COLUMNS = (NAME, STATUS, AGE, MESSAGE)


def resources(plural: str, bodies: Iterable[Mapping[str, Any]], *, wide: bool, all_namespaces: bool) -> Table:
    """Return the table of resources of one kind.

    ``plural`` is the plural of the kind, ``bodies`` have their status. ``wide``: with all columns.
    """
    columns = columns_of(plural, wide=wide, all_namespaces=all_namespaces)
    return table([c.title for c in columns], ([c.cell(body) for c in columns] for body in bodies))


def columns_of(plural: str, *, wide: bool, all_namespaces: bool) -> list[TableColumn]:
    """Return the columns to show for the kind with this plural; ``all_namespaces``: also that of the namespace."""
    chosen = [column for column in COLUMNS.get(plural, DEFAULT_COLUMNS) if wide or not column.wide]
    return [TableColumn("NAMESPACE", _at("metadata", "namespace")), *chosen] if all_namespaces else chosen


def nodes(infos: Iterable[NodeInfo]) -> Table:
    """Return the table of nodes, in the given order."""
    rows = (
        [
            node.name,
            ("online" if node.online else "offline") + (",drained" if node.drained else ""),
            ",".join(sorted(k.removeprefix(ROLE_PREFIX) for k in node.labels if k.startswith(ROLE_PREFIX))) or "-",
            str(node.resources),
            str(node.workers),
            str(node.cpus),
            f"{node.memory_bytes / 2**30:.1f}Gi" if node.memory_bytes else "-",
            text(node.version),
        ]
        for node in infos
    )
    return table(["NAME", "STATUS", "ROLES", "SERVICES", "WORKERS", "CPUS", "MEMORY", "VERSION"], rows)


def events(shown: Iterable[Event], *, header: bool = True) -> Table:
    """Return the table of events, in the given order; ``header``: with the titles of columns."""
    rows = (
        [age(e.time), e.type, e.reason, e.about, e.message + (f" (x{e.count})" if e.count > 1 else "")] for e in shown
    )
    grid = table(["AGE", "TYPE", "REASON", "ABOUT", "MESSAGE"], rows)
    grid.show_header = header
    return grid
