"""GM's figures and health over HTTP: they agree with what nodes, operators and its store have seen."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from halimede import topics
from halimede.messages import DeadLetter, Histogram, TaskInfo
from halimede.names import Key
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.stats.histogram import record
from services.gm.cluster.local import LocalCluster
from tests.integration.gm_world import MODELS, SERVICES, World, model, service, world
from tests.scraping import asked, scrape, value
from tests.waiting import eventually

PATIENCE = 60.0
HELMET = Key(SERVICES, "default", "helmet")


@contextlib.asynccontextmanager
async def shown(w: World) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """GM's figures at an address, as its process has them."""
    figures = w.manager.metrics
    registered = registry("gm", figures.collect)
    async with (
        HttpServer(health=figures.health(), registry=registered, routes=figures.add_to) as server,
        aiohttp.ClientSession() as session,
    ):
        yield session, server.url


def histogram(*milliseconds: float) -> Histogram:
    made = Histogram(buckets={})
    for each in milliseconds:
        record(made, each)
    return made


async def test_figures_agree_with_what_nodes_and_operators_saw(w: World) -> None:
    edge, cloud = w.edge, w.cloud
    async with shown(w) as (s, url):
        assert (await w.ask("get", plural=MODELS, name="nowhere")).error
        edge.counts[HELMET] = TaskInfo(
            inference_number=7, cloud_inference_number=2, hard_example_number=3, degraded=1, skipped=4, lost=5,
            rejected=6, late=8, unasked=9, mining_errors=10, queued=11, edge_latency=histogram(1, 2, 400),
            offload_latency=histogram(90),
        )  # fmt: skip
        cloud.counts[HELMET] = TaskInfo(served=2, queue_latency=histogram(3, 4), compute_latency=histogram(30))
        edge.report(HELMET)
        cloud.report(HELMET)
        families: dict[str, Any] = {}
        helmet = {"namespace": "default", "service": "helmet"}

        async def has(number: float, name: str, **labels: str) -> bool:
            families.update(await scrape(s, url))
            return value(families, f"halimede_{name}", **labels) == number

        await eventually(lambda: has(2, "service_queue_seconds_count"), PATIENCE)
        await eventually(lambda: has(7, "service_answers_total", **helmet), PATIENCE)
        sent = len(edge.sent("insert")) + len(cloud.sent("insert"))
        for name, number in {
            "answers_total": 7, "cloud_answers_total": 2, "hard_samples_total": 3, "degraded_answers_total": 1,
            "skipped_frames_total": 4, "lost_frames_total": 5, "rejected_frames_total": 6, "late_replies_total": 8,
            "unasked_replies_total": 9, "mining_errors_total": 10, "queued_frames": 11, "edge_seconds_count": 3,
            "offload_seconds_count": 1,
        }.items():  # fmt: skip
            assert await has(number, f"service_{name}", **helmet), name
        assert await has(2, "service_edge_seconds_bucket", **helmet, le="0.0025")
        assert await has(1, "service_compute_seconds_bucket", **helmet, le="0.05")
        for name, number in {
            "nodes": 2, "nodes_online": 2, "unhealthy_resources": 0, "downstream_acknowledgements_total": sent,
            "downstream_messages_total": sent, "downstream_repeats_total": 0,
        }.items():  # fmt: skip
            assert await has(number, f"gm_{name}"), name
        assert await has(1, "gm_resources", plural=SERVICES, phase="Running")
        assert await has(1, "gm_node_state", node="edge0", drained="false")
        assert await has(3, "gm_api_request_seconds_count", op="apply", outcome="OK")
        assert await has(1, "gm_api_request_seconds_count", op="get")
        assert value(families, "halimede_gm_syncs_total") >= 2
        assert value(families, "halimede_gm_status_writes_total") >= 1
        assert value(families, "halimede_gm_queue_work_seconds_count", queue="reconcile") >= 3
        assert value(families, "halimede_gm_epoch") > 0


async def test_dead_letters_are_counted_beyond_those_that_become_events(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), shown(w) as (session, url):
        letter = DeadLetter(client="c", topic="t", reason="no JSON", size=1)
        for _ in range(20):
            await w.operator.publish(topics.DEAD_LETTER.at(node="none", client="operator"), letter)

        async def are_counted() -> bool:
            return value(await scrape(session, url), "halimede_gm_dead_letters_total") == 20

        await eventually(are_counted, PATIENCE)
        events = (await w.ask("events", limit=100)).events
        assert 0 < sum(event.count for event in events if event.reason == "DeadLetter") <= 20


async def test_a_store_that_cannot_be_written_is_told_and_mends_by_itself(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm() as cluster, shown(w) as (session, url):
        await w.apply(model("small"))
        assert (await asked(session, url, "readyz"))[0] == 200
        refuse(cluster, refuse=True)
        reply = await w.ask("apply", object=model("big"))
        assert reply.error is not None
        assert "cannot be written" in reply.error.message
        status, checks = await asked(session, url, "readyz")
        assert status == 503
        assert "cannot be written" in checks["store"]
        assert (await asked(session, url, "healthz"))[0] == 200
        assert value(await scrape(session, url), "halimede_gm_store_errors_total") >= 1
        refuse(cluster, refuse=False)
        assert set((await asked(session, url, "readyz"))[1].values()) == {"ok"}


def refuse(cluster: LocalCluster, *, refuse: bool) -> None:
    """Make SQLite refuse writes, as it does on a full disk or a read-only file system."""
    cluster._database.connection.execute(f"PRAGMA query_only = {int(refuse)}")


async def test_prometheus_finds_who_is_there_and_what_is_unhealthy(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, shown(w) as (session, url):
        await w.apply(model("small"), model("big"), service(cloud="nowhere"))
        await eventually(lambda: HELMET in edge.holds)
        labels = {"plural": SERVICES, "namespace": "default", "name": "helmet"}
        labels |= {"phase": "Pending", "reason": "NodeNotFound"}

        async def is_named() -> bool:
            samples = (await scrape(session, url))["halimede_gm_unhealthy_resources"].samples
            return labels in [sample.labels for sample in samples]

        await eventually(is_named)
        async with session.get(f"{url}/targets") as answer:
            assert answer.content_type == "application/json"
            found = await answer.json()
        assert found[0] == {"targets": [url.removeprefix("http://")], "labels": {"halimede_role": "gm"}}
        assert all(target.startswith("127.0.0.1:") for each in found for target in each["targets"])
