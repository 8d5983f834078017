"""Three nodes of the real system share a load and vote; one of them is killed in the middle."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halimede import topics
from halimede.api import multiedge
from halimede.bus import Delivery
from halimede.messages import Fused, Result
from tests.e2e.resources import Statuses, resource
from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.test_observability import DOCUMENT, MULTI_EDGE, page_of, targets
from tests.inbox import Inbox
from tests.integration.gm_world import template
from tests.scraping import scrape

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NODES = {"a": "edge0", "b": "edge1", "c": "edge2"}


def service(name: str, application: str, cameras: dict[str, str]) -> dict[str, Any]:
    """A service of one edge worker a node, each with its camera."""
    model = {"name": "digits-small"}
    workers = [
        {"name": part, "model": model, "source": {"cameras": [camera]}, "template": template(NODES[part])}
        for part, camera in cameras.items()
    ]
    return resource("MultiEdgeInferenceService", name, application={"name": application}, edgeWorkers=workers)


class Heard:
    """What was said on the topics of multi-edge services."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, Result]] = {}
        self.copies: Counter[str] = Counter()
        self.fused: Inbox[Fused] = Inbox()
        self.statuses = Statuses()

    async def follow(self, system: System) -> None:
        async def result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.service, {})[delivery.body.id] = delivery.body

        await system.bus.subscribe(topics.MULTI_RESULT.filter(), result)
        await system.bus.subscribe(topics.FUSED.filter(), self.fused)
        await self.statuses.follow(system, multiedge.PLURAL)


async def figures_are_documented(system: System) -> None:
    """Scrape all members: figures that only they have are in the documentation, and all of those are shown."""
    shown: set[str] = set()
    async with aiohttp.ClientSession() as session:
        found = await targets(session, await page_of(system))
        for name in ("sort.a.edge0", "vote.a.edge0"):
            for family in (await scrape(session, f"http://{found[name]}")).values():
                shown.add(family.name + ("_total" if family.type == "counter" else ""))
    documented = set(re.findall(r"`(halimede_worker_\w+)`", DOCUMENT.read_text()))
    theirs = {name for name in documented if name.startswith(MULTI_EDGE)}
    assert {name for name in shown if name.startswith(MULTI_EDGE)} == theirs


async def test_three_nodes_share_vote_and_go_on_without_one(tmp_path: Path) -> None:
    pictures = digits()
    async with running(tmp_path / "home", ",".join(NODES.values())) as system:
        heard = Heard()
        await heard.follow(system)
        await system.apply(DIGITS / "1-models.yaml")
        sent = system.sent
        await system.client.apply(service("sort", "balance", dict.fromkeys(NODES, "belt")))
        await system.client.apply(service("vote", "fusion", {"a": "left", "b": "right"}))
        both = ("sort", "vote")
        await system.until("both run", lambda: {heard.statuses.of(name).phase for name in both} == {"Running"})

        await figures_are_documented(system)

        # one camera, three nodes; the second one dies with its controller after a third of the frames
        await system.send(pictures[:100], camera="belt")
        for name in ("lc:edge1", "worker:sort.b.edge1", "worker:vote.b.edge1"):
            system.processes()[name].send_signal(signal.SIGKILL)
        await system.send(pictures[100:300], camera="belt")
        await system.until("all are answered", lambda: len(heard.results.get("sort", {})) == 300)
        sorted_ = heard.results["sort"]
        assert set(sorted_) == set(sent)
        assert {result.node for result in sorted_.values()} <= {*NODES.values()}
        assert {result.by for result in sorted_.values()} <= {"edge", "peer"}
        assert not any(result.degraded for result in sorted_.values())
        # what the dead one had answered and not yet acknowledged was answered again, and nothing else
        assert sum(heard.copies.values()) - len(heard.copies) <= 64

        # two views of one picture: what both say is decided at one of the two that are left
        sent.clear()
        for picture in pictures[300:320]:
            now_ns = time.time_ns()
            await system.send([picture], camera="left", fps=1000, captured_ns=now_ns)
            await system.send([picture], camera="right", fps=20, captured_ns=now_ns)
        await system.until("both views are answered", lambda: len(heard.results.get("vote", {})) == 40)
        votes = heard.results["vote"].values()
        assert {result.by for result in votes} <= {"joint", "edge"}
        views = heard.fused.read(lambda fused: {source.camera for source in fused.sources})
        assert views.count({"left", "right"}) >= 10

        for name in both:
            await system.client.delete(multiedge.PLURAL, name)
        await system.until("nothing is left", lambda: not heard.statuses.documents)
