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
from halimede.messages import Fused, Result, StatusDocument
from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.test_observability import DOCUMENT, MULTI_EDGE, page_of, targets
from tests.scraping import scrape

pytestmark = pytest.mark.timeout(240)

NODES = {"a": "edge0", "b": "edge1", "c": "edge2"}


def service(name: str, application: str, cameras: dict[str, str], nodes: dict[str, str] = NODES) -> dict[str, Any]:
    """A service of one edge worker a node, each with its camera."""
    workers = [
        {
            "name": part,
            "model": {"name": "digits-small"},
            "source": {"cameras": [camera]},
            "template": {"spec": {"nodeName": nodes[part], "containers": [{"name": "w", "image": "halimede/worker"}]}},
        }
        for part, camera in cameras.items()
    ]
    return {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "MultiEdgeInferenceService",
        "metadata": {"name": name},
        "spec": {"application": {"name": application}, "edgeWorkers": workers},
    }


class Heard:
    """What was said on the topics of multi-edge services."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, Result]] = {}
        self.copies: Counter[str] = Counter()
        self.fused: list[Fused] = []
        self.statuses: dict[str, StatusDocument] = {}

    async def follow(self, system: System) -> None:
        async def result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.service, {})[delivery.body.id] = delivery.body

        async def fused(delivery: Delivery[Fused]) -> None:
            self.fused.append(delivery.body)

        async def status(delivery: Delivery[StatusDocument]) -> None:
            self.statuses[delivery.body.name] = delivery.body

        async def gone(names: Any) -> None:
            self.statuses.pop(names["name"], None)

        await system.bus.subscribe(topics.MULTI_RESULT.filter(), result)
        await system.bus.subscribe(topics.FUSED.filter(), fused)
        await system.bus.subscribe(topics.STATUS.filter(plural=multiedge.PLURAL), status, cleared=gone)

    def phase(self, name: str) -> str:
        return self.statuses[name].status.phase if name in self.statuses else ""

    def count(self, name: str) -> int:
        metrics = self.statuses[name].status.metrics if name in self.statuses else []
        return int(next((metric.value for metric in metrics if metric.key == "inferenceNumber"), "0"))


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


@pytest.mark.slow
async def test_three_nodes_share_vote_and_go_on_without_one(tmp_path: Path) -> None:
    pictures = digits()
    async with running(tmp_path / "home", ",".join(NODES.values())) as system:
        heard = Heard()
        await heard.follow(system)
        await system.apply(DIGITS / "1-models.yaml")
        sent = system.sent
        await system.client.apply(service("sort", "balance", dict.fromkeys(NODES, "belt")))
        await system.client.apply(service("vote", "fusion", {"a": "left", "b": "right"}))
        await system.until("both run", lambda: heard.phase("sort") == heard.phase("vote") == "Running")

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
        whole = [each for each in heard.fused if {source.camera for source in each.sources} == {"left", "right"}]
        assert len(whole) >= 10

        for name in ("sort", "vote"):
            await system.client.delete(multiedge.PLURAL, name)
        await system.until("nothing is left", lambda: not heard.statuses)
