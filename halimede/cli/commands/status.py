"""``halimede status``: the state of the system on one screen, with the next steps for each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.inferencemodel import PLURAL as SERVED
from halimede.api.model import PLURAL as MODELS
from halimede.cli import options as o
from halimede.cli import status_advice, tables
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, NoBrokerError, NotLetInError, UnreachableError
from halimede.cli.doctor import latency
from halimede.cli.options import Format
from halimede.cli.output import COLOURS, clean, console, dump, plain
from halimede.cli.runner import run
from halimede.cli.status_advice import Task
from halimede.cli.tables import dig, text
from halimede.errors import BrokerNameError
from halimede.messages import NodeInfo

#: seconds to wait for a GM that is restarting
PATIENCE_S = 2.0
SHOWN_SERVICES, SHOWN_TASKS, SHOWN_NAMES = 20, 20, 5


def status(
    output: o.ReportOption = o.ReportFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show the state of the system on one screen, and what to do next. Exit code 0: no problem, 1: a problem.

    \b
    Examples:
      halimede status
      halimede status -o json | jq .todo
      watch -n 5 halimede status
    """
    run(lambda: show_status(o.address(broker, credentials), Format(output)))


@dataclass(slots=True)
class Snapshot:
    """The observed state. ``error``: why the rest is missing."""

    broker: str
    reachable: bool = True
    #: why it is reachable but of no use
    refused: str = ""
    broker_version: str = ""
    round_trip_ms: float | None = None
    gm: Mapping[str, Any] | None = None
    nodes: Sequence[NodeInfo] = ()
    #: by the short name of their kind
    services: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    served: Sequence[Mapping[str, Any]] = ()
    models: Sequence[Mapping[str, Any]] = ()
    datasets: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    more: bool = field(default=False)

    @property
    def every(self) -> list[Mapping[str, Any]]:
        """All services, and models that are served."""
        return [*(body for bodies in self.services.values() for body in bodies), *self.served]

    def tasks(self) -> list[Task]:
        """Return the tasks, the most important first."""
        if not self.reachable or self.refused:
            return [Task("broker", self.error, "run `halimede doctor`")]
        if self.gm is None:
            return [Task("gm", self.error, "run `halimede doctor`")]
        return [
            *status_advice.on_manager(self.gm),
            *(task for kind, bodies in self.services.items() for task in status_advice.on_resources(kind, bodies)),
            *status_advice.on_resources("im", self.served),
            *status_advice.on_resources("model", self.models),
            *status_advice.on_resources("dataset", self.datasets),
            *status_advice.on_nodes(self.nodes, str(self.gm.get("version") or "")),
        ]


async def show_status(broker: BrokerAddress, form: Format) -> int:
    """Show the state of the system. Returns 0 without a problem, else 1."""
    seen = await take_snapshot(broker)
    tasks = seen.tasks()
    if form in {Format.JSON, Format.YAML}:
        dump(document(seen, tasks), form)
    else:
        render(console(), seen, tasks)
    return 1 if tasks else 0


async def take_snapshot(broker: BrokerAddress) -> Snapshot:
    """Read the whole state once."""
    seen = Snapshot(str(broker))
    try:
        async with Client.to(broker, patience_s=PATIENCE_S) as client:
            seen.round_trip_ms = await latency.round_trip_ms(client.bus)
            if not broker.settings.prefix:
                seen.broker_version = await latency.broker_version(client.bus)
            await read_resources(seen, client)
    except NotLetInError as error:
        wrong_name = isinstance(error.__cause__, BrokerNameError)
        seen.refused = "its certificate has other names" if wrong_name else "it refuses these credentials"
        seen.error = str(error)
    except NoBrokerError as error:
        seen.reachable, seen.error = False, str(error)
    except UnreachableError as error:
        seen.error = str(error)
    return seen


async def read_resources(seen: Snapshot, client: Client) -> None:
    """Add what GM reports: itself, the nodes, the resources. Raises UnreachableError."""
    version = await client.version()
    seen.gm = version if isinstance(version, Mapping) else {"version": version}
    seen.nodes = await client.nodes()
    seen.services, more_services = await client.services_by_kind()
    seen.served, more_served = await client.list(SERVED)
    seen.models, more_models = await client.list(MODELS)
    seen.datasets, more_datasets = await client.list(DATASETS)
    seen.more = more_services or more_served or more_models or more_datasets


def document(seen: Snapshot, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return a snapshot as plain data."""
    return {
        "healthy": not tasks,
        "broker": {
            "address": seen.broker,
            "reachable": seen.reachable,
            "version": seen.broker_version,
            "roundTripMs": seen.round_trip_ms,
        },
        "gm": {"online": seen.gm is not None, **(seen.gm or {})},
        "nodes": [plain(node) for node in sorted(seen.nodes, key=lambda n: n.name)],
        "services": [
            {
                "namespace": dig(body, "metadata", "namespace"),
                "name": dig(body, "metadata", "name"),
                "phase": tables.phase(body),
                "reason": status_advice.reason(body),
                "message": tables.condition(body),
                **({"overload": overload} if (overload := tables.overload(body)) else {}),
                **({"tiers": tables.running(body)} if tables.tiers(body) else {}),
            }
            for body in sorted(seen.every, key=status_advice.rank)
        ],
        "todo": [asdict(task) for task in tasks],
    }


def render(out: Console, seen: Snapshot, tasks: Sequence[Task]) -> None:
    """Print a snapshot as text."""
    speed = "" if seen.round_trip_ms is None else f", round trip {seen.round_trip_ms:g} ms"
    version = f", {seen.broker_version}" if seen.broker_version else ""
    state = ": no answer" if not seen.reachable else f": {seen.refused}" if seen.refused else ""
    _line(out, "Broker", f"{seen.broker}{version}{speed}{state}")
    if seen.gm is not None:
        _line(out, "GM", f"up, version {text(seen.gm.get('version'))}, epoch {text(seen.gm.get('epoch'))}")
        _line(out, "Nodes", _nodes(seen.nodes))
        phases = Counter(tables.phase(body) for body in seen.every)
        shown = (
            ", ".join(f"{phases[p]} {p}" for p in sorted(phases, key=status_advice.phase_rank))
            or "none: `halimede apply -f FILE`"
        )
        _line(out, "Services", shown + (" (the list is truncated)" if seen.more else ""))
        for body in sorted(seen.every, key=status_advice.rank)[:SHOWN_SERVICES]:
            phase = tables.phase(body)
            row = Text(f"  {dig(body, 'metadata', 'namespace')}/{dig(body, 'metadata', 'name')}  ")
            row.append(phase, style=COLOURS.get(phase, ""))
            out.print(row.append(clean("  " + tables.condition(body)), style="dim"))
            if overload := tables.overload(body):
                out.print(Text(clean(f"    {overload}"), style="yellow"))
            if tiers := tables.running(body):
                out.print(Text(clean(f"    tiers: {tiers}"), style="dim"))
    elif seen.reachable:
        _line(out, "GM", "not running")
    if not tasks:
        out.print(Text("No problems found.", style="green"))
        return
    out.print(Text("\nTo do", style="bold"))
    for task in tasks[:SHOWN_TASKS]:
        out.print(Text(clean(f"  {task.about}: {task.what}"), style="yellow"))
        out.print(Text(clean(f"    {task.do}")))
    if len(tasks) > SHOWN_TASKS:
        out.print(f"  and {len(tasks) - SHOWN_TASKS} more: `halimede status -o json`")


def _nodes(nodes: Sequence[NodeInfo]) -> str:
    groups = {
        "online": [n.name for n in nodes if n.online and not n.drained],
        "offline": [n.name for n in nodes if not n.online],
        "drained": [n.name for n in nodes if n.drained],
    }
    parts = [f"{len(groups['online'])} online"]
    for state in ("offline", "drained"):
        if names := sorted(groups[state]):
            more = ", ..." if len(names) > SHOWN_NAMES else ""
            parts.append(f"{len(names)} {state} ({', '.join(names[:SHOWN_NAMES])}{more})")
    return ", ".join(parts)


def _line(out: Console, title: str, what: str) -> None:
    out.print(Text(f"{title + ':':<10}", style="bold").append(clean(what), style="not bold"))
