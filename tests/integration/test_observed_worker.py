"""Workers as processes, seen over HTTP: figures that agree with the ledger and the results, health that follows."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import TaskInfo
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.offload.channel import inference
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.workers import RequestWorker
from halimede.worker.metrics import WorkerMetrics
from halimede.worker.settings import read
from tests.digits import Digits
from tests.integration.workers import Site
from tests.scraping import Families, asked, scrape, value
from tests.unit.frames.clouds import Brightness
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(240)
PATIENCE = 60.0


def counted(families: Families, name: str, **labels: str) -> float:
    return value(families, f"halimede_worker_{name}", **labels)


async def reported(s: Site, frames: int) -> None:
    """Wait until the worker's own report has all that happened."""
    await eventually(lambda: s.counts(s.edge).inference_number == frames and s.counts(s.edge).queued == 0, PATIENCE)


@pytest.mark.slow
async def test_figures_agree_with_the_ledger_the_results_and_one_another(s: Site, digits: Digits) -> None:
    edge, cloud = s.edge, s.cloud
    async with aiohttp.ClientSession() as session:
        _, big = await s.run_both(digits)
        urls = {name: s.infos[name].http for name in (edge, cloud)}
        for url in urls.values():
            assert (await asked(session, url, "healthz"))[0] == (await asked(session, url, "readyz"))[0] == 200
        await s.send(digits.pictures[:200], fps=100)
        await s.publish(b"\x89PNG this is no picture")
        await s.answered()
        await reported(s, 200)
        await eventually(lambda: s.counts(edge).rejected == 1, PATIENCE)
        by_cloud = len(s.by("cloud"))
        await eventually(lambda: s.counts(cloud).served == by_cloud and all_measured(s.counts(cloud)), PATIENCE)

        seen, said = await scrape(session, urls[edge]), s.counts(edge)
        assert counted(seen, "accepted_frames_total") == counted(seen, "answers_total") == said.inference_number == 200
        assert counted(seen, "cloud_answers_total") == said.cloud_inference_number == by_cloud > 0
        assert counted(seen, "hard_samples_total") == said.hard_example_number
        assert counted(seen, "rejected_frames_total") == said.rejected == 1
        assert counted(seen, "lost_frames_total") == counted(seen, "duplicate_frames_total") == 0
        easy = sum(not result.hard for result in s.results.values())
        assert counted(seen, "degraded_answers_total") == said.degraded == 200 - by_cloud - easy
        assert counted(seen, "edge_seconds_count", step="offload") == by_cloud
        assert counted(seen, "queued_frames") == counted(seen, "outbox_results") == 0
        assert counted(seen, "circuit_state") == 0
        assert counted(seen, "cloud_credits", cloud_worker=cloud) > 0
        assert counted(seen, "edge_seconds_bucket", step="wait", le="+Inf") == 200
        assert value(seen, "halimede_bus_connected") == 2  # one for frames, one for all else

        seen, said = await scrape(session, urls[cloud]), s.counts(cloud)
        assert counted(seen, "served_samples_total") == said.served == by_cloud
        assert counted(seen, "batches_total") == said.batches == counted(seen, "cloud_batch_samples_count")
        assert counted(seen, "cloud_batch_samples_sum") == by_cloud
        assert counted(seen, "cloud_seconds_count", step="queue") == by_cloud
        assert all_measured(said)
        assert counted(seen, "unserved_samples_total") == 0

        big.kill()
        s.sent.clear()
        await s.send_all(digits.pictures[:100], fps=100)
        await reported(s, 300)
        seen = await scrape(session, urls[edge])
        for reason, number in s.reasons().items():
            assert counted(seen, "degraded_answers_total", reason=reason) == number > 0
        assert counted(seen, "circuit_state") > 0 or counted(seen, "cloud_credits") == 0


def all_measured(counts: TaskInfo) -> bool:
    """Whether a cloud worker has noted the times of all that it served: it does so after it has counted them."""
    queue, compute = counts.queue_latency, counts.compute_latency
    if queue is None or compute is None:
        return False
    return sum(queue.buckets.values()) == counts.served and sum(compute.buckets.values()) == counts.batches


async def test_a_worker_whose_model_hangs_does_not_live_but_one_that_loads_it_does(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    told = {"WORKER_NAME": "w", "NODE_NAME": "n", "SERVICE_NAME": "s", "HALIMEDE_STATE": str(tmp_path)}
    settings = replace(read("cloud", told, own_estimator=True), model_timeout_s=0.2)
    release = threading.Event()
    async with MemoryBus("worker", memory_broker) as bus, ModelThread() as thread, aiohttp.ClientSession() as session:
        figures = WorkerMetrics(settings, [bus], slot=ModelSlot(LoadedModel(Brightness(), thread)))
        async with HttpServer(health=figures.health(), registry=registry("cloud", figures.collect)) as server:
            call = asyncio.ensure_future(thread.call(release.wait, 20))  # a test that fails here must end, too
            await asyncio.sleep(0.5)
            assert (await asked(session, server.url, "healthz"))[0] == 200  # still loading
            assert (await asked(session, server.url, "readyz"))[1]["work"] == "starting"
            figures.cloud = RequestWorker(bus, figures.slot, inference("default", "s", "w"))
            status, checks = await asked(session, server.url, "healthz")
            assert (status, checks["model"].partition(" s,")[2]) == (503, " more than 0.2")
            assert value(await scrape(session, server.url), "halimede_worker_model_call_seconds") > 0.2
            release.set()
            await call
            assert (await asked(session, server.url, "healthz"))[0] == 200
