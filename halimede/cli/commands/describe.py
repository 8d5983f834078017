"""``halimede describe``: prints one resource in a readable form, with its status and its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from halimede.api import Kind
from halimede.cli import options as o
from halimede.cli import tables
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.output import age, clean, console, table, to_yaml
from halimede.cli.runner import run
from halimede.cli.tables import text
from halimede.errors import hide_secrets
from halimede.health_checks.resource_fields import condition_text, dig, phase
from halimede.messages import Event
from halimede.names import Key

#: most events that are shown, the newest
EVENTS_SHOWN = 15
#: most classes that are drawn, and characters of the longest bar and of a class's name
DRAWN, WIDTH, NAME = 25, 40, 40
#: characters of a digest that are shown: enough for `halimede rollback --to`
SHORT = 12


def describe(
    kind: o.KindArgument,
    name: o.NameArgument = "",
    namespace: o.Namespace = "default",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show everything about one resource: spec, conditions, nodes, metrics, events.

    \b
    Examples:
      halimede describe ji digits
      halimede describe model/digits-small -n factory
    """

    async def command() -> None:
        resource_kind, resource_name = o.named_target(kind, name)
        await describe_resource(o.address(broker, credentials), resource_kind, resource_name, o.namespace_of(namespace))

    run(command)


async def describe_resource(broker: BrokerAddress, kind: Kind, name: str, namespace: str) -> None:
    """Print everything about one resource. Raises HalimedeError."""
    async with Client.to(broker) as client:
        body = await client.get(kind.plural, name, namespace)
        events = await client.events(about=str(Key(kind.plural, namespace, name)))
    render(console(), kind, body, events[-EVENTS_SHOWN:])


def render(out: Console, kind: Kind, body: Mapping[str, Any], events: Sequence[Event]) -> None:
    """Print a resource, part by part, without empty parts. ``body`` has its status."""
    metadata, status = body.get("metadata") or {}, body.get("status") or {}
    observed = status.get("observedGeneration", 0)
    why = condition_text(body)
    facts = [
        ("Name", text(metadata.get("name"))),
        ("Namespace", text(metadata.get("namespace"))),
        ("Kind", f"{body.get('kind', kind.kind)} ({body.get('apiVersion', kind.api_version)})"),
        ("UID", text(metadata.get("uid"))),
        ("Generation", f"{text(metadata.get('generation'))} (observed: {observed})"),
        ("Created", f"{text(metadata.get('creationTimestamp'))} ({age(metadata.get('creationTimestamp'))} ago)"),
        ("Labels", _pairs(metadata.get("labels"))),
        ("Annotations", _pairs(metadata.get("annotations"))),
        ("Status", phase(body) + (f" ({why})" if why != "-" else "")),
    ]
    _facts(out, [(key, value) for key, value in facts if value])
    _part(out, "Spec", Text(clean("\n".join(_spec(body)).rstrip())))
    for title, content in (*dataset_parts(body), *model_parts(body)):
        _part(out, title, content)
    conditions = status.get("conditions") or []
    rows = [
        [text(c.get("type")), text(c.get("status", "True")), age(c.get("lastTransitionTime")), text(c.get("reason")),
         text(c.get("message"))]
        for c in conditions
    ]  # fmt: skip
    _rows(out, "Conditions", ["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows)
    rows = [
        [text(n.get("node")), "online" if n.get("online") else "offline", text(n.get("phase")),
         str(n.get("workers", 0)), str(dig(n, "taskInfo", "inferenceNumber") or 0), text(n.get("message"))]
        for n in status.get("nodes") or []
    ]  # fmt: skip
    _rows(out, "Workers", *_workers(body))
    _rows(out, "Nodes", ["NODE", "PRESENCE", "PHASE", "WORKERS", "SAMPLES", "MESSAGE"], rows)
    _rows(out, "Metrics", ["METRIC", "VALUE"], _metrics(body))
    if events:
        _part(out, "Events", tables.events(events))


def _metrics(body: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each metric of a resource: its name in words, unless its user named it, and its value."""
    name = str if body.get("kind") == "Model" else tables.metric_name
    return [[name(key), tables.measure(key, value)] for key, value in tables.metrics(body).items()]


def _workers(body: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the rows of the table of workers in a service's status."""
    tiers = tables.tiers(body)
    rows = []
    for worker in sorted(dig(body, "status", "workers") or [], key=lambda w: _tier_rank(tiers, w)):
        done = dig(worker, "output", "taskInfo") or {}
        offload_cells = [str(done.get("deferred") or 0), tables.size(done.get("uploadedBytes") or 0)] if tiers else []
        message = ": ".join(filter(None, (worker.get("reason"), worker.get("message")))) or "-"
        samples = str(done.get("inferenceNumber") or done.get("served") or 0)
        phase = text(worker.get("phase", "Pending"))
        rows.append([text(worker.get("name")), text(worker.get("node")), phase, samples, *offload_cells, message])
    columns = ["DEFERRED", "SENT UP"] if tiers else []
    return ["TIER" if tiers else "WORKER", "NODE", "PHASE", "SAMPLES", *columns, "MESSAGE"], rows


def _tier_rank(tiers: Sequence[str], worker: Mapping[str, Any]) -> int:
    """Return the position of a worker's tier, edge first: a sort key; 0 without tiers."""
    return tiers.index(worker.get("name")) if worker.get("name") in tiers else 0


def _spec(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that describe the spec of a service; of another kind, its spec as YAML.

    For a missing field it shows the default of ``halimede.api``, such as 100 boxes and 2000 ms.
    """
    spec = body.get("spec") or {}
    if isinstance(dig(spec, "edgeWorkers"), Sequence) and isinstance(dig(spec, "application"), Mapping):
        yield from _multi_edge(spec)
        return
    edge, cloud = dig(spec, "edgeWorker"), dig(spec, "cloudWorker")
    if not (isinstance(edge, Mapping) and isinstance(cloud, Mapping)):
        yield hide_secrets(to_yaml(spec))
        return
    committee = "".join(f" and {text(dig(member, 'name'))}" for member in edge.get("committee") or ())
    yield f"edge    model {choice(edge.get('model'))}{committee}, on {_where(edge)}"
    if detector := edge.get("detector"):
        most = detector.get("maxBoxes", 100)
        yield f"        samples are crops of the boxes of {text(detector.get('name'))}, at most {most} a frame"
    yield f"        hard samples by {_mining(edge)}; wait for the cloud at most {edge.get('deadlineMs', 2000)} ms"
    yield f"        frames from {_source(edge, str(dig(body, 'metadata', 'name')))}"
    yield from _uploads(edge)
    yield from _budget(edge)
    for tier in spec.get("tiers") or []:
        yield f"tier    {text(tier.get('name'))}: model {text(dig(tier, 'model', 'name'))}, on {_where(tier)}"
        yield f"        hard samples by {_mining(tier)}"
        yield from _uploads(tier)
        yield from _budget(tier)
    yield f"cloud   model {choice(cloud.get('model'))}, on {_where(cloud)}"
    if dataset := dig(spec, "dataset", "name"):
        yield f"dataset {dataset}"


def _multi_edge(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that describe the spec of a multi-edge service."""
    application = spec["application"]
    yield f"{_call_text(application)}, {application.get('entry') or 'installed'}"
    for worker in spec["edgeWorkers"]:
        name, detector = str(worker.get("name")), dig(worker, "detector", "name")
        detector_text = f", detector {detector}" if detector else ""
        yield f"{name}: model {text(dig(worker, 'model', 'name'))}{detector_text}, on {_where(worker)}"
        yield f"    frames from {_source(worker, name)}; wait for peers at most {worker.get('deadlineMs', 2000)} ms"
    if joint := dig(spec, "cloudWorker"):
        model = dig(joint, "model", "name")
        yield f"joint on {_where(joint)}" + (f", model {model}" if model else "")
    else:
        yield "joint at the edge worker that has run longest"
    if dataset := dig(spec, "dataset", "name"):
        yield f"dataset {dataset}"


def _where(worker: Mapping[str, Any]) -> str:
    """Return where a worker may run: the name of a node, or the labels of nodes."""
    pod = dig(worker, "template", "spec") or {}
    name = worker.get("nodeName") or pod.get("nodeName")
    if name:
        return f"node {name}"
    selector = _pairs(pod.get("nodeSelector"))
    return f"nodes with {selector}" if selector else "no node: set nodeName or nodeSelector"


def _uploads(worker: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about content and encoding of a worker's uploads, unless they are the default."""
    if worker.get("upload", "frame") != "frame":
        yield "        uploads the regions of hard frames with uncertain boxes"
    encoding, most = worker.get("encoding", "as-it-came"), worker.get("maxBytes")
    if worker.get("detector") and encoding == "as-it-came":
        encoding = "jpeg"  # crops have no encoding of their own
    how = "unchanged" if encoding == "as-it-came" else f"as {encoding}"
    if most is not None:
        yield f"        uploads {how}, at most {most} bytes each"
    elif encoding != "as-it-came":
        yield f"        uploads {how}"


def _budget(worker: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the share of a worker's samples that go to the next tier."""
    target, audits = worker.get("targetUploadRatio"), worker.get("auditShare")
    if target is None:
        yield "        no budget: the rule alone decides (targetUploadRatio sets one)"
    else:
        yield f"        budget: uploads of {target:.1%} of the samples in the long run"
    if audits:
        yield f"        audits: uploads of {audits:.1%} of the easy samples as well"


def _mining(edge: Mapping[str, Any]) -> str:
    """Return the mining algorithm of a worker, with its parameters."""
    return _call_text(edge.get("hardExampleMining") or edge.get("hardExampleAlgorithm") or {})


def _call_text(chosen: Mapping[str, Any]) -> str:
    """Return an algorithm or application with its parameters, such as ``Margin(threshold_margin=0.2)``."""
    parameters = ", ".join(f"{p.get('key')}={p.get('value')}" for p in chosen.get("parameters") or [])
    return f"{text(chosen.get('name'))}({parameters})" if parameters else text(chosen.get("name"))


def _source(edge: Mapping[str, Any], default_camera: str) -> str:
    """Return where a worker's frames come from; ``default_camera``: the camera of a worker that names none."""
    source = edge.get("source") or {}
    if source.get("path") or source.get("url"):
        return hide_secrets(str(source.get("path") or source.get("url")))
    cameras = source.get("cameras") or [default_camera]
    names = ("camera " if len(cameras) == 1 else "cameras ") + ", ".join(map(str, cameras))
    return f"{names}, dropped if older than {source['maxAgeMs']} ms" if source.get("maxAgeMs") else names


def _pairs(values: Any) -> str:
    """Return a mapping as ``key=value, ...``, without ``=`` where the value is empty; empty for anything else."""
    if not isinstance(values, Mapping):
        return ""
    return ", ".join(f"{key}={value}" if value != "" else str(key) for key, value in values.items())


def _facts(out: Console, facts: Sequence[tuple[str, str]]) -> None:
    """Print names with their values, aligned."""
    width = max(len(key) for key, _ in facts) + 2
    for key, value in facts:
        line = Text(f"{key}:".ljust(width + 1), style="bold")
        out.print(line.append(clean(value), style="not bold"))


def _rows(out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        _part(out, title, table(columns, rows))


def _part(out: Console, title: str, content: RenderableType) -> None:
    out.print(Text(f"\n{title}", style="bold"))
    out.print(Padding(content, (0, 0, 0, 2), expand=False))


def dataset_parts(body: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield (title, content) of the parts about a dataset; none before a node has counted it."""
    facts = dig(body, "status", "dataset")
    if not isinstance(facts, Mapping):
        return
    classes, number, broken = facts.get("classes") or [], facts.get("numberOfClasses") or 0, facts.get("broken") or []
    faults = facts.get("numberBroken") or 0
    lines = [
        f"{facts.get('numberOfSamples') or 0:,} samples, {tables.size(facts.get('size') or 0)}",
        f"{number:,} classes" if number else "no classes: the data has no column, field or folder for them",
        f"{faults:,} entries are broken" if faults else "all entries are valid",
        f"counted {age(facts.get('countedAt'))} ago",
    ]
    yield "Contents", Text("\n".join(lines))
    if classes:
        yield "Classes", histogram(classes, number)
    if broken:
        more = f" (the first {len(broken)} of {faults:,})" if faults > len(broken) else ""
        rows = [[str(entry.get("name")), str(entry.get("reason"))] for entry in broken]
        yield f"Broken entries{more}", table(["ENTRY", "REASON"], rows)


def histogram(classes: Sequence[Mapping[str, Any]], number: int) -> Table:
    """Return a table with a bar for each of the most frequent classes, and the total of the others.

    ``classes`` (at least one) have name and count, the most frequent first. ``number`` is that of all classes: above
    their number, the status does not list all, and the total of the others is a lower bound.
    """
    counts = [(str(entry.get("name")), int(entry.get("count") or 0)) for entry in classes]
    total, longest = sum(count for _, count in counts), max(count for _, count in counts)
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(no_wrap=True)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(width=WIDTH, no_wrap=True)
    for name, count in counts[:DRAWN]:
        short = clean(name if len(name) <= NAME else f"{name[: NAME - 1]}\u2026")
        bar = Bar(max(1, longest), 0, count, width=WIDTH, color="cyan")
        drawn.add_row(Text(short), f"{count:,}", f"{count / max(1, total):.1%}", bar)
    if number > DRAWN:
        remaining = sum(count for _, count in counts[DRAWN:])
        text = f"{remaining:,}" if number <= len(counts) else f"over {remaining:,}"
        drawn.add_row(Text(f"{number - DRAWN:,} more", style="dim"), text, f"{remaining / max(1, total):.1%}", "")
    return drawn


def model_parts(body: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield (title, content) of the parts about the models in a status; none if it has no model."""
    status = body.get("status") or {}
    if url := status.get("url"):
        lines = [str(url), f"version {text(status.get('servingVersion'))}"]
        yield "Served", Text(clean("\n".join(lines)))
    if facts := status.get("model"):
        yield "Content", Text(clean("\n".join(_content(facts))))
        rows = [
            [direction, text(tensor.get("name")), text(tensor.get("datatype")), _shape(tensor.get("shape") or [])]
            for direction in ("inputs", "outputs")
            for tensor in facts.get(direction) or []
        ]
        if rows:
            yield "Signature", table(["WAY", "NAME", "TYPE", "SHAPE"], rows)
    if versions := status.get("versions"):
        rows = [
            [
                text(entry.get("version")),
                text((entry.get("digest") or "")[:SHORT]),
                age(entry.get("since")),
                text(entry.get("url")),
            ]
            for entry in versions
        ]
        yield "Versions served, the latest first", table(["VERSION", "DIGEST", "SINCE", "URL"], rows)
    if chosen := status.get("chosen"):
        rows = [[text(entry.get("worker")), text(entry.get("model"))] for entry in chosen if entry.get("model")]
        if rows:
            yield "Chosen models", table(["WORKER", "MODEL"], rows)


def choice(model: Any) -> str:
    """Return a worker's choice of a Model as text: its name, or its selector."""
    if name := dig(model, "name"):
        return str(name)
    selector = dig(model, "selector") or {}
    criteria = [f"task {selector['task']}"] if selector.get("task") else []
    criteria += [f"labels {', '.join(map(str, selector['labels']))}"] if selector.get("labels") else []
    criteria += [f"metadata {_pairs(selector['metadata'])}"] if selector.get("metadata") else []
    return f"the best by {selector.get('metric') or 'accuracy'} with {' and '.join(criteria)}" if criteria else "-"


def _content(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the content of a Model: digest, size, and since when nodes have it."""
    yield f"sha256 {text(facts.get('digest'))}"
    if facts.get("size"):
        yield tables.size(facts["size"])
    if facts.get("since"):
        yield f"ready since {facts['since']}"


def _shape(extents: list[int]) -> str:
    """Return a shape as text, with open axes as a question mark."""
    return " x ".join("?" if extent < 0 else str(extent) for extent in extents) or "scalar"
