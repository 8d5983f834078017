"""What a test asks of a process that shows its health and figures over HTTP: as Prometheus would, by its own parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import eventually

#: the last words of a metric's name say what is counted or measured
UNITS = re.compile(
    r"_(seconds|bytes|info|frames|answers|samples|batches|uploads|replies|errors|results|credits|state|connected|connects"
    r"|messages|handlers|epoch|nodes|nodes_online|nodes_drained|resources|depth|calls|failures|repeats|workers|restarts"
    r"|preparations|acknowledgements|syncs|writes|letters|reports|removals|complete|waiting|overtaken|dropped"
    r"|requests|rollouts|sessions|versions|updates|metric|ratio|hardness|index|rounds|candidates|events|objects|leading)$"
)
Families = dict[str, Any]


async def scrape(session: aiohttp.ClientSession, url: str) -> Families:
    """Return a process's metrics by name; each of ours has to have a type, a help text and a unit."""
    async with session.get(f"{url}/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name, family in families.items():
        assert family.type != "unknown", name
        assert family.documentation, name
        if name.startswith("halimede_"):
            assert UNITS.search(name), f"{name} has no unit"
            exposed = name + ("_total" if family.type == "counter" else "")
            assert f"# HELP {exposed} " in text, name
            assert f"# TYPE {exposed} {family.type}\n" in text, name
    return families


def value(families: Families, name: str, **labels: str) -> float:
    """Return the sum of the samples of that name with (at least) those labels."""
    return sum(
        s.value for f in families.values() for s in f.samples if s.name == name and labels.items() <= s.labels.items()
    )


async def asked(session: aiohttp.ClientSession, url: str, path: str) -> tuple[int, dict[str, str]]:
    """Return the status and the checks of ``/healthz`` or ``/readyz``."""
    async with session.get(f"{url}/{path}") as answer:
        return answer.status, (await answer.json())["checks"]


async def reaches(session: aiohttp.ClientSession, url: Callable[[], str], path: str, status: int) -> dict[str, str]:
    """Wait for a status of ``/healthz`` or ``/readyz``, and return its checks."""

    async def answer() -> tuple[dict[str, str]] | None:
        now, checks = await asked(session, url(), path)
        return (checks,) if now == status else None

    [checks] = await eventually(answer, 30.0, 0.05)
    return dict(checks)
