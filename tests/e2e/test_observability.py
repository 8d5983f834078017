"""What an operator sees of a running system: figures that agree with one another, health, the page in a browser."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import defaultdict
from pathlib import Path

import aiohttp
import pytest

from halimede import topics
from halimede.messages import GmPresence
from tests.browser import browser
from tests.e2e.running import ROOT, System, digits, running
from tests.inbox import Inbox
from tests.scraping import asked, reaches, scrape, value

pytestmark = pytest.mark.slow

DOCUMENT = ROOT / "docs" / "reference" / "metrics.md"
#: figures of members of multi-edge services; and of all that this system has none of
MULTI_EDGE = ("halimede_worker_joint_", "halimede_worker_shared_")
ELSEWHERE = (
    "halimede_camera_", "halimede_serve_", "halimede_training_", "halimede_router_", "halimede_worker_deferred_",
    "halimede_worker_kept_", "halimede_worker_store_", "halimede_worker_unkept_", *MULTI_EDGE,
)  # fmt: skip


async def page_of(system: System) -> str:
    """Return where GM's page is, as its presence says."""
    inbox: Inbox[GmPresence] = Inbox()
    await system.bus.subscribe(topics.GM_PRESENCE.filter(), inbox)
    await system.until("gm's presence", lambda: inbox.deliveries)
    await system.bus.unsubscribe(topics.GM_PRESENCE.filter())
    return inbox.deliveries[-1].body.http


async def targets(session: aiohttp.ClientSession, page: str) -> dict[str, str]:
    """Return addresses by the worker's, the node's or GM's name."""
    async with session.get(f"{page}/targets") as answer:
        found = {}
        for each in await answer.json():
            labels = each["labels"]
            name = labels.get("halimede_worker") or labels.get("halimede_node") or labels["halimede_role"]
            found[name] = each["targets"][0]
        return found


async def test_figures_of_all_processes_agree_and_each_is_documented(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as system:
        await system.run_digits(occupancy={})
        page = await page_of(system)
        pictures = digits()[:300]
        await system.send(pictures)
        await system.until_answered()
        await system.until("counted", lambda: system.metric("inferenceNumber") == 300)
        async with aiohttp.ClientSession() as session:
            found = await targets(session, page)
            assert set(found) == {
                "gm", "edge0", "edge1", "cloud0", "digits-edge-edge0", "digits-edge-edge1", "digits-cloud-cloud0",
            }  # fmt: skip
            scraped = {name: await scrape(session, f"http://{address}") for name, address in found.items()}
            for name, address in found.items():
                for path in ("healthz", "readyz"):
                    async with session.get(f"http://{address}/{path}") as answer:
                        assert answer.status == 200, (name, path, await answer.text())
        edges = [scraped["digits-edge-edge0"], scraped["digits-edge-edge1"]]
        by_cloud = sum(result.by == "cloud" for result in system.results.values())
        assert sum(value(f, "halimede_worker_accepted_frames_total") for f in edges) == 300
        assert sum(value(f, "halimede_worker_answers_total") for f in edges) == 300
        assert sum(value(f, "halimede_worker_cloud_answers_total") for f in edges) == by_cloud > 0
        for step in ("decode", "wait"):
            assert sum(value(f, "halimede_worker_edge_seconds_count", step=step) for f in edges) == 300
        calls = sum(value(f, "halimede_worker_edge_seconds_count", step="model") for f in edges)
        assert calls == sum(value(f, "halimede_worker_edge_batch_samples_count") for f in edges) > 0
        cloud = scraped["digits-cloud-cloud0"]
        assert value(cloud, "halimede_worker_served_samples_total") == by_cloud
        assert value(cloud, "halimede_worker_cloud_seconds_count", step="queue") == by_cloud
        assert value(cloud, "halimede_worker_cloud_seconds_count", step="decode") == by_cloud
        assert value(cloud, "halimede_worker_cloud_batch_samples_sum") == by_cloud
        gm = scraped["gm"]
        assert value(gm, "halimede_service_answers_total", service="digits", namespace="default") == 300
        assert value(gm, "halimede_gm_nodes_online") == 3
        assert value(scraped["edge0"], "halimede_lc_workers", role="edge", phase="Running") == 1

        documented = set(re.findall(r"`(halimede_\w+)`", DOCUMENT.read_text()))
        shown: dict[str, set[str]] = defaultdict(set)
        for name, families in scraped.items():
            for family in families.values():
                if family.name.startswith("halimede_"):
                    shown[family.name + ("_total" if family.type == "counter" else "")].add(name)
        # of what nothing here runs others say it: tests/integration/test_serve_*.py, tests/e2e/test_multi_edge.py
        assert set(shown) == {name for name in documented if not name.startswith(ELSEWHERE)}


async def test_readiness_follows_the_broker_and_liveness_does_not(tmp_path: Path) -> None:
    async with running(tmp_path / "home", "edge0") as system, aiohttp.ClientSession() as session:
        page = await page_of(system)

        broker = system.processes()["broker"]
        broker.send_signal(signal.SIGSTOP)
        try:
            await reaches(session, lambda: page, "readyz", 503)
            assert (await asked(session, page, "healthz"))[0] == 200
        finally:
            broker.send_signal(signal.SIGCONT)
        await reaches(session, lambda: page, "readyz", 200)


async def test_the_page_shows_a_running_system_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as system:
        await system.run_digits()
        page = await page_of(system)
        pictures = digits()
        async with browser(tmp_path / "profile") as tab:
            await tab.resize(1440, 1700)
            await tab.open(page)
            sending = asyncio.create_task(system.send(pictures * 2, fps=60))
            await tab.until("document.querySelectorAll('.sample img').length >= 8")
            await tab.until(
                "[...document.querySelectorAll('.sample img')].every((i) => i.complete && i.naturalWidth > 0)"
            )
            await tab.until("document.querySelectorAll('.card path.line')[0].getAttribute('d').length > 100")
            assert "Running" in await tab.evaluate("document.querySelector('.card').innerText")
            views = (("desktop", 1440, 1700, False), ("dark", 1440, 1700, True), ("phone", 390, 1600, False))
            for name, width, height, dark in views:
                await tab.resize(width, height, mobile=name == "phone", dark=dark)
                await tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                assert await tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                picture = await tab.picture(ROOT / "build" / f"page-{name}.png")
                assert len(picture) > 20_000  # something was drawn
            assert tab.said == []
            sending.cancel()
            await asyncio.wait([sending])
