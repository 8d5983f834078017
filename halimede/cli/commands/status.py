"""``halimede status``: shows the state of the system on one screen, with the next step for each problem."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from halimede.cli import options as o
from halimede.cli import tables
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, NoBrokerError, NotLetInError, UnreachableError
from halimede.cli.doctor import latency
from halimede.cli.options import Format
from halimede.cli.output import COLOURS, clean, console, dump, plain
from halimede.cli.runner import run
from halimede.cli.system_facts import SystemAnswers, listen, read_system
from halimede.cli.tables import text
from halimede.errors import BrokerNameError
from halimede.health_checks.check import Check
from halimede.health_checks.registry import examine
from halimede.health_checks.resource_fields import condition_text, dig, phase, reason
from halimede.health_checks.resources import phase_rank, rank
from halimede.messages import NodeInfo

#: seconds to wait for a GM that is restarting
PATIENCE_S = 2.0
#: seconds in which the broker sends the retained statuses of cameras and GMs, and dead letters may arrive
LISTEN_S = 0.5
#: most services, rows of checks, and names of nodes on the screen
SHOWN_SERVICES, SHOWN_CHECKS, SHOWN_NAMES = 20, 20, 5


def status(
    output: o.ReportOption = "table",
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
    """The observed state of the system."""

    #: the broker's address, and where that was found
    broker: str
    reachable: bool = True
    #: why the broker does not accept this command; empty: it does, or it is not reachable
    refused: str = ""
    #: empty: unknown
    broker_version: str = ""
    #: None: not measured
    round_trip_ms: float | None = None
    #: None: GM was not reached, or did not answer
    answers: SystemAnswers | None = None
    #: why the answers of GM are missing; empty: they are not
    error: str = ""

    @property
    def services(self) -> list[Mapping[str, Any]]:
        """The bodies of all services, and of InferenceModels, the worst phase first."""
        if self.answers is None:
            return []
        facts = self.answers.facts
        return sorted([*facts.services(), *facts.resources.get("im", ())], key=rank)

    def checks(self) -> list[Check]:
        """Return the rows of all health checks that are not ok; without GM's answers, one row with the error."""
        if self.answers is None:
            about = "gm" if self.reachable and not self.refused else "broker"
            return [Check(about, "problem", self.error, "run `halimede doctor`", about, fails=True)]
        return [check for check in examine(self.answers.facts) if check.level != "ok"]


async def show_status(broker: BrokerAddress, form: Format) -> int:
    """Print the state of the system. Returns the exit code: 1 if a check fails."""
    snapshot = await take_snapshot(broker)
    checks = snapshot.checks()
    if form in {Format.JSON, Format.YAML}:
        dump(document(snapshot, checks), form)
    else:
        render(console(), snapshot, checks)
    return int(any(check.fails for check in checks))


async def take_snapshot(broker: BrokerAddress) -> Snapshot:
    """Return the state of the system, read once. That the broker or GM does not answer is part of it.

    Raises ApiRefusedError.
    """
    snapshot = Snapshot(str(broker))
    try:
        async with Client.to(broker, patience_s=PATIENCE_S) as client:
            snapshot.round_trip_ms = await latency.round_trip_ms(client.bus)
            # users of a broker with access rules may not read it, and EMQX logs each denial
            if not (broker.settings.prefix or broker.settings.credentials or broker.settings.username):
                snapshot.broker_version = await latency.broker_version(client.bus)
            bus, answers = await asyncio.gather(
                listen(client.bus, LISTEN_S), read_system(client, tls=broker.settings.secure)
            )
            snapshot.answers = replace(answers, facts=replace(answers.facts, bus=bus))
    except NotLetInError as error:
        wrong_name = isinstance(error.__cause__, BrokerNameError)
        snapshot.refused = "its certificate has other names" if wrong_name else "it refuses these credentials"
        snapshot.error = str(error)
    except NoBrokerError as error:
        snapshot.reachable, snapshot.error = False, str(error)
    except UnreachableError as error:
        snapshot.error = str(error)
    return snapshot


def document(snapshot: Snapshot, checks: Sequence[Check]) -> dict[str, Any]:
    """Return a snapshot and its checks as plain data; an error of the broker or of GM is among the checks."""
    answers = snapshot.answers
    return {
        "healthy": not any(check.fails for check in checks),
        "broker": {
            "address": snapshot.broker,
            "reachable": snapshot.reachable,
            "version": snapshot.broker_version,
            "roundTripMs": snapshot.round_trip_ms,
        },
        "gm": {"online": answers is not None, **(answers.version if answers else {})},
        "nodes": [plain(node) for node in sorted(answers.facts.nodes if answers else (), key=lambda n: n.name)],
        "services": [
            {
                "namespace": dig(body, "metadata", "namespace"),
                "name": dig(body, "metadata", "name"),
                "phase": phase(body),
                "reason": reason(body),
                "message": condition_text(body),
                **({"overload": overload} if (overload := tables.overload(body)) else {}),
                **({"tiers": tables.running_workers(body)} if tables.tiers(body) else {}),
            }
            for body in snapshot.services
        ],
        "todo": [
            {"about": check.about or check.name, "what": check.what, "do": check.do} for check in checks if check.fails
        ],
        "checks": [check.fields() for check in checks],
    }


def render(out: Console, snapshot: Snapshot, checks: Sequence[Check]) -> None:
    """Print a snapshot and its checks as text."""
    speed = "" if snapshot.round_trip_ms is None else f", round trip {snapshot.round_trip_ms:g} ms"
    version = f", {snapshot.broker_version}" if snapshot.broker_version else ""
    state = ": no answer" if not snapshot.reachable else f": {snapshot.refused}" if snapshot.refused else ""
    _line(out, "Broker", f"{snapshot.broker}{version}{speed}{state}")
    if snapshot.answers:
        _render_system(out, snapshot, snapshot.answers)
    elif snapshot.reachable and not snapshot.refused:
        _line(out, "GM", "no answer")
    failing = [check for check in checks if check.fails]
    if not failing:
        out.print(Text("No problems found.", style="green"))
    _render_checks(out, "To do", failing)
    _render_checks(out, "To know", [check for check in checks if not check.fails])


def _render_system(out: Console, snapshot: Snapshot, answers: SystemAnswers) -> None:
    """Print what GM has answered: itself, the nodes, and the services."""
    version = answers.version
    _line(out, "GM", f"up, version {text(version.get('version'))}, epoch {text(version.get('epoch'))}")
    _line(out, "Nodes", _nodes(answers.facts.nodes))
    phases = Counter(phase(body) for body in snapshot.services)
    shown = ", ".join(f"{phases[p]} {p}" for p in sorted(phases, key=phase_rank)) or "none: `halimede apply -f FILE`"
    _line(out, "Services", shown + (" (the list is truncated)" if answers.truncated else ""))
    for body in snapshot.services[:SHOWN_SERVICES]:
        row = Text(f"  {dig(body, 'metadata', 'namespace')}/{dig(body, 'metadata', 'name')}  ")
        row.append(phase(body), style=COLOURS.get(phase(body), ""))
        out.print(row.append(clean("  " + condition_text(body)), style="dim"))
        if tiers := tables.running_workers(body):
            out.print(Text(clean(f"    tiers: {tiers}"), style="dim"))


def _render_checks(out: Console, title: str, checks: Sequence[Check]) -> None:
    """Print the rows of checks under a title; nothing without rows."""
    if checks:
        out.print(Text(f"\n{title}", style="bold"))
    for check in checks[:SHOWN_CHECKS]:
        out.print(Text(clean(f"  {check.about or check.name}: {check.what}"), style=COLOURS[check.level]))
        out.print(Text(clean(f"    {check.do}")))
    if len(checks) > SHOWN_CHECKS:
        out.print(f"  and {len(checks) - SHOWN_CHECKS} more: `halimede status -o json`")


def _nodes(nodes: Sequence[NodeInfo]) -> str:
    """Return how many nodes are online and not drained, how many offline, and how many drained.

    The names of offline and of drained nodes are in the text; a node may be both.
    """
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
