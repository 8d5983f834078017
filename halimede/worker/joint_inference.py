"""The jobs of a joint inference service: a small model at the edge, a big one in the cloud."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from halimede import topics
from halimede.frames import load_will
from halimede.frames.channel import inference
from halimede.frames.limits import ServerLimits
from halimede.frames.server import CloudServer
from halimede.mining import create as create_miner
from halimede.offload import OffloadClient
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.upload_policy.triage import create as create_triage
from halimede.stats.ledger import Count
from halimede.worker.edge import EdgeLoop
from halimede.worker.glimpses import Glimpses
from halimede.worker.job import Job, Parts, drain, source_of
from halimede.worker.keeping import keeping
from halimede.worker.outbox import Outbox
from halimede.worker.settings import Settings
from halimede.worker.uploads import uploading

#: camera frames that may be under way to a busy worker: they hold memory in the broker or here
INTAKE_RECEIVE_MAXIMUM = 16


def joint_inference(settings: Settings) -> Job:
    """Return what a worker of a joint inference service does."""
    if settings.role == "edge":
        return Job(_edge)
    will = load_will(settings.namespace, settings.service, settings.worker)
    return Job(_cloud, lambda: will)


async def _edge(parts: Parts, ready: Callable[[], None]) -> None:
    """Run the edge loop until ``stop``, then drain it; ``ready`` is called when it takes frames."""
    settings, ledger = parts.settings, parts.ledger
    uploaded, samples = ledger[Count.UPLOADED], ledger[Count.ANSWERED]
    miner = create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
    triage = create_triage(settings, miner, random.random, uploaded=uploaded, samples=samples)
    intake = settings.client_id("intake")
    source = source_of(parts, lambda: parts.connect(intake, receive_maximum=INTAKE_RECEIVE_MAXIMUM))
    names = {"ns": settings.namespace, "service": settings.service}
    channel = inference(settings.namespace, settings.service, settings.worker, tier=settings.next_tier)
    offload = OffloadClient(parts.bus, channel)
    outbox = Outbox(parts.bus, topics.RESULT.at(**names))
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    async with (
        ModelThread("decode") as decoder,
        uploading(parts, offload.circuit) as uploads,
        keeping(parts) as keeper,
        asyncio.TaskGroup() as group,
    ):
        glimpses = Glimpses(parts.bus, decoder, settings) if settings.hard_samples else None
        loop = EdgeLoop(
            settings,
            slot=parts.slot,
            miner=miner,
            decoder=decoder,
            offload=offload,
            outbox=outbox,
            ledger=ledger,
            book=parts.book,
            glimpses=glimpses,
            triage=triage,
            keeper=keeper,
            uploads=uploads,
        )
        await offload.start()
        running = [group.create_task(outbox.run(), name="outbox"), group.create_task(loop.run(), name="edge loop")]
        if glimpses:
            running.append(group.create_task(glimpses.run(), name="glimpses"))
        taking = group.create_task(source.run(loop, parts.stop), name="source")
        watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
        parts.figures.edge = (loop, offload, outbox)
        parts.figures.triage = triage
        ready()
        await parts.stop.wait()
        await drain(settings.grace_s, taking, loop.drain)
        for task in (taking, watching, *running):
            task.cancel()


async def _cloud(parts: Parts, ready: Callable[[], None]) -> None:
    """Run the cloud server: see ``_edge``."""
    settings, bus = parts.settings, parts.bus
    server = CloudServer(
        bus,
        parts.slot,
        inference(settings.namespace, settings.service, settings.worker, tier=settings.tier),
        limits=ServerLimits(batch=settings.batch, delay_s=settings.delay_s),
        book=parts.book,
    )
    parts.ledger.follow(Count.SERVED, lambda: server.stats.served)
    parts.ledger.follow(Count.BATCHES, lambda: server.stats.batches)
    parts.ledger.follow(Count.REJECTED, lambda: bus.stats.rejected + server.stats.unfit)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.run(), name="server")
        watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
        parts.figures.cloud = server
        ready()
        await parts.stop.wait()
        await server.drain(settings.grace_s)
        watching.cancel()
        serving.cancel()
