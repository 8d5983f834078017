"""The page of all metrics, from the calls that export them and from the declared counters of workers.

A metric that cannot be read from the code, or whose exporter is not known, is an error: it would be missing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from halimede.messages.counters import Count, ExportedBy
from halimede.observe.metrics import PREFIX
from scripts.reference.markdown import IncompleteError, code, document, prose, table
from scripts.reference.source import assigned, calls, text_of, trees

SOURCE = "the calls that export them"
#: the function that makes a metric, and its type
MAKERS = {
    "counter": "counter", "gauge": "gauge", "times": "histogram", "sizes": "histogram", "GaugeMetricFamily": "gauge",
}  # fmt: skip
#: the module of the makers, whose own calls are not metrics
OWN = "halimede/observe/metrics.py"
EXPORTERS = {
    ExportedBy.EDGE_WORKER: "edge", ExportedBy.CLOUD_WORKER: "cloud", ExportedBy.UPLOAD_POLICY: "edge",
    ExportedBy.TIER: "tier",
}  # fmt: skip
#: who exports a metric, by its name: the first match counts
ROLES = (
    (r"bus_|build_info|health_", "all"),
    (r"(gm|service|loop)_", "GM"),
    (r"lc_", "LC"),
    (r"serve_", "serve"),
    (r"router_", "router"),
    (r"camera_", "camera"),
    (r"training_updates", "aggregator"),
    (r"training_", "aggregator, trainer"),
    (r"worker_(joint_|model_|queued_|rejected_)", "edge, cloud"),
    (r"worker_(cloud_(seconds|batch)|unserved_)", "cloud"),
    (
        r"worker_(circuit|cloud_credits|upload|drift|agreement|withheld|edge_|occupancy|degraded|outbox|peer|overtaken|lost|shared)",
        "edge",
    ),
    (r"worker_(kept|oldest|store|unacknowledged|unkept)", "edge"),
)
ABOUT = """\
Every process exports its metrics at `/metrics` ([observability](../observability.md)). `edge`, `tier` and `cloud` are \
workers, `serve` and `router` the commands of [serving](../serving.md), `camera` a camera process.

Counters of services and workers persist across restarts, as the status does. Those of a service have one series for \
each node (`sum without (node)`): with `halimede delete node` a series ends, and none falls. Histograms, and answers \
counted by `reason`, start at zero with the process. In addition, every process exports its `process_*` (memory, CPU, \
files) and `python_info`. Times are in seconds."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: its name without ``halimede_`` and ``_total``, type, meaning and labels."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]

    @property
    def full(self) -> str:
        """The name in Prometheus."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind == "counter" else "")


def pages() -> dict[str, str]:
    """Return the page."""
    rows = {
        row.full: [code(row.full), row.kind, _of(row), ", ".join(row.labels), prose(row.text)]
        for row in declared_metrics().values()
    }
    columns = ["name", "type", "of", "labels", "meaning"]
    return {"metrics": document("Metrics", SOURCE, ABOUT, table(columns, (rows[name] for name in sorted(rows))))}


@functools.cache
def declared_metrics() -> dict[str, MetricRow]:
    """Return all metrics by their name without ``halimede_`` and ``_total``. The whole source is read once."""
    return {row.name: row for row in _rows()}


def _rows() -> Iterator[MetricRow]:
    """Yield all metrics; one that several roles export comes several times."""
    yield MetricRow("build_info", "gauge", "This process.", ("role", "version"))
    for path, tree in trees().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and (path != OWN or function.name == "buses"):
                yield from _of_function(path, tree, function)
    for count in Count:
        if not count.metric:
            continue
        if ExportedBy.SERVICE in count.exported_by:
            yield MetricRow(
                f"service_{count.metric}", "counter", count.text, ("namespace", "node", "plural", "service")
            )
        if any(each in count.exported_by for each in EXPORTERS):
            yield MetricRow(f"worker_{count.metric}", "counter", count.text, ())


def _of(row: MetricRow) -> str:
    declared = {
        role
        for count in Count
        if row.name == f"worker_{count.metric}"
        for each, role in EXPORTERS.items()
        if each in count.exported_by
    }
    for pattern, role in ROLES:
        if not declared and re.match(pattern, row.name):
            return role
    if not declared:
        raise IncompleteError(f"{row.full}: add who exports it to ROLES in scripts/reference/metrics.py")
    return ", ".join(role for role in ("edge", "tier", "cloud") if role in declared)


def _of_function(path: str, tree: ast.Module, function: ast.FunctionDef) -> Iterator[MetricRow]:
    """Yield the metrics that a function makes itself."""
    inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function]
    nested = {id(node) for each in inner for node in ast.walk(each)}
    top = ast.Module([node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)], [])
    for maker, call in calls(function):
        made = isinstance(call.func, ast.Name) and maker in MAKERS and len(call.args) > 1 and id(call) not in nested
        if not made or _is_declared(call.args[0]):
            continue
        names = {"PREFIX": ast.Constant(PREFIX), **assigned(top), **assigned(function, call.lineno)}
        labels = tuple(sorted(_labels(call, tree, names)))
        for values in _bindings(tree, function):
            name, text = (text_of(argument, {**names, **values}) for argument in call.args[:2])
            if not name or not text:
                raise IncompleteError(
                    f"{path}:{call.lineno}: name and text of this metric cannot be read from the code"
                )
            yield MetricRow(name.removeprefix(PREFIX), MAKERS[maker], text, labels)


def _is_declared(name: ast.expr) -> bool:
    """Whether a metric is that of a declared counter: ``f"worker_{count.metric}"``."""
    return isinstance(name, ast.JoinedStr) and "count.metric" in ast.unparse(name)


def _bindings(tree: ast.Module, function: ast.FunctionDef) -> list[dict[str, ast.expr]]:
    """Return what names stand for: a row of a loop over literals, or the arguments of one call of the function."""
    found: list[dict[str, ast.expr]] = [
        {target.id: value for target, value in zip(targets, row.elts, strict=True) if isinstance(target, ast.Name)}
        for node in ast.walk(function)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple)
        for targets in [node.target.elts]
        for row in node.iter.elts
        if isinstance(row, ast.Tuple)
    ]
    parameters = [argument.arg for argument in function.args.args]
    literal = ast.Constant | ast.Name
    for name, call in calls(tree):
        if name == function.name and call.args and isinstance(call.args[0], literal):
            found.append(dict(zip(parameters, call.args, strict=False)))
    return found or [{}]


def _labels(node: ast.AST, tree: ast.Module, names: dict[str, ast.expr]) -> list[str]:
    """Return the labels of the samples of a call: the keys of mappings that are first in a pair, also behind names."""
    functions = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    found: dict[str, None] = {}
    seen, waiting = set[str](), [node]
    while waiting:
        for part in ast.walk(waiting.pop()):
            match part:
                case ast.keyword(arg="labels", value=ast.List(elts=values)):
                    found |= {str(value.value): None for value in values if isinstance(value, ast.Constant)}
                case (
                    ast.Tuple(elts=[ast.Dict(keys=keys) | ast.BinOp(op=ast.BitOr(), right=ast.Dict(keys=keys)), *_])
                    | ast.Return(value=ast.Dict(keys=keys))
                ):
                    found |= {str(key.value): None for key in keys if isinstance(key, ast.Constant)}
                case ast.Name(id=name) if name not in seen and name not in MAKERS:
                    seen.add(name)
                    waiting += [each[name] for each in (names, functions) if name in each]
    return list(found)
