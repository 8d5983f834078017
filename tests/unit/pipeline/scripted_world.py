"""One worker of any kind in simulated time, what may happen to it, and records of all that it is given and answers."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.acked_publisher import AckedPublisher, ignore
from halimede.messages import Reply, Result
from halimede.mining.threshold import Threshold
from halimede.offload import OffloadClient
from halimede.offload.channel import Channel, hop, inference
from halimede.offload.load_balancer import LoadBalancer
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.escalation import NextTier as Tier
from halimede.pipeline.executor import InlinePolicy, ModelThread
from halimede.pipeline.intake import EdgeLimits, RequestIntake, RequestLimits
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.sample import Conclusion, Sample
from halimede.pipeline.upload_policy.audit import Audits
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.pipeline.workers import EdgeWorker, RequestWorker
from halimede.stats.ledger import Ledger
from halimede.topic import Filter
from tests.unit.frames.clouds import NS, SERVICE
from tests.unit.pipeline.scripted_parts import (
    Defective,
    Foresight,
    ModelScript,
    MutableBus,
    NextTier,
    ScriptedBroker,
    ScriptedExecutor,
    ScriptedModel,
    ScriptedPeers,
    ThreadPace,
)  # fmt: skip
from tests.unit.pipeline.scripted_records import Records, Room, Setup

EDGE = EdgeLimits(inside=4, patient=2, pixels=120_000, batch=3)
REQUESTS = RequestLimits(queue=4, queue_bytes=20_000, batch=3, replies=4)
REQUESTERS = ("e0", "e1")


class World:
    """One worker, by its setup, and everybody around it."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup, self.folder = setup, folder
        self.records = Records()
        self.broker = ScriptedBroker(seed=1)
        self.pace, self.script = ThreadPace(), ModelScript()
        self.next, self.peers = NextTier(self.broker, "cloud" if setup.kind == "cloud" else ""), ScriptedPeers()
        self.client: OffloadClient | None = None
        self.defective: Defective | None = None
        self.policy: UploadPolicy | None = None
        self.requests: RequestIntake | None = None
        self.edge: EdgeWorker | None = None
        self.worker: EdgeWorker | RequestWorker
        #: whether a drain began, and with it the end of requests, and whether frames are accepted no more
        self.draining = self.drained = False
        self.running: asyncio.Task[None] | None = None
        #: whether every reply that was published must have arrived
        self.calm = True
        #: whether the broker was ever restarted: consumers miss what comes before they are back
        self.restarted = False
        self._random = random.Random(2)
        self._cleanup = AsyncExitStack()

    # --- start and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect everybody and run the worker."""
        enter = self._cleanup.enter_async_context
        self.ledger = self._cleanup.enter_context(Ledger(self.folder, "u-1"))
        consumer = await enter(MutableBus("consumer", self.broker))
        self.bus = await enter(MutableBus("w0", self.broker))
        await consumer.wait_connected(1)
        await self.bus.wait_connected(1)
        await consumer.subscribe(topics.RESULT.filter(), self._result)
        self.decoder = await enter(self._thread())
        self.slot = ModelSlot(await self.load_model())
        self.slot.guarded = self.setup.short
        self.background = [asyncio.create_task(self.next.run())] if self.setup.next_tier else []
        escalation = await self._escalation() if self.setup.next_tier else None
        if self.setup.kind == "cloud":
            await self._start_cloud(escalation)
        else:
            await self._start_edge(escalation)
        for name in REQUESTERS if self.requests else ():
            address = self.channel.reply.at(**self.channel.names, worker=name)
            await consumer.subscribe(Filter(self.channel.reply, address.text), self._reply)
        self.running = asyncio.create_task(self.worker.run())
        self.background.append(self.running)
        if self.setup.kind == "member":
            assert self.requests
            self.background.append(asyncio.create_task(self.requests.run()))
        await asyncio.sleep(0.5)
        self._record()

    def _thread(self) -> ModelThread:
        return ModelThread(make=lambda _: ScriptedExecutor(self.pace))

    async def load_model(self, *, canary: bool = False, blind: bool = False) -> LoadedModel:
        """Open a model with threads of its own."""
        owned = AsyncExitStack()
        threads = [await owned.enter_async_context(self._thread()) for _ in range(self.setup.lanes)]
        model = ScriptedModel(self.script, canary=canary, blind=blind)
        version = f"v{len(self.records.models)}"
        loaded = LoadedModel(model, threads[0], version, owned=owned, more=threads[1:])
        if self.setup.short:
            loaded.inline_policy = InlinePolicy(0.001)
            loaded.inline_policy.learn = lambda samples, ms: None  # type: ignore[method-assign]  # the machine's load
        self.records.models.append(loaded)
        return loaded

    async def _escalation(self) -> Escalation:
        setup = self.setup
        channel = inference(NS, SERVICE, "w0", tier="cloud" if setup.kind == "cloud" else "")
        credits_ = LoadBalancer(choose=self._random.sample)
        self.client = OffloadClient(self.bus, channel, window=2, waiters=2, credits_=credits_)
        await self.client.start()
        self.defective = Defective(self.client)
        if setup.policy:
            self.policy = UploadPolicy(budget=Budget(0.5), audits=Audits(0.5, self._random.random))
        tier = Tier(hard=setup.hard, deadline_s=2.0)
        return Escalation(self.defective, self.ledger, tier=tier, policy=self.policy)

    async def _start_cloud(self, escalation: Escalation | None) -> None:
        self.channel: Channel = inference(NS, SERVICE, "w0", tier="gate" if escalation else "")
        limits = dataclasses.replace(REQUESTS, delay_s=self.setup.delay_s)
        first = self.setup.mines_first
        miner = (Foresight() if first else Threshold()) if escalation else None
        worker = RequestWorker(
            self.bus, self.slot, self.channel, limits=limits, escalation=escalation, miner=miner, mines_samples=first,
            ledger=self.ledger if escalation else None,
        )  # fmt: skip
        self.worker, self.pipeline, self.requests = worker, worker.pipeline, worker.intake

    async def _start_edge(self, escalation: Escalation | None) -> None:
        first = self.setup.mines_first
        miner = (Foresight() if first else Threshold()) if escalation else None
        outbox = result_outbox(self.bus, limit=2, capacity=2)
        address = topics.RESULT.at(ns=NS, service=SERVICE)
        responder = ResultResponder(Origin(SERVICE, "w0", "node"), outbox, address, self.ledger)
        peers = self.peers if self.setup.kind in {"edge-peers", "member"} else None
        self.worker = self.edge = EdgeWorker(
            self.slot, responder, self.ledger, self.decoder, limits=EDGE, miner=miner, mines_first=first,
            escalation=escalation, peers=peers, deadline_s=2.0,
        )  # fmt: skip
        self.pipeline = self.edge.pipeline
        if self.setup.kind == "member":
            self.channel = hop(NS, SERVICE, "share", "w0")
            self.requests = RequestIntake(self.bus, self.channel, self.pipeline, limits=REQUESTS, advertiser=Room())

    async def end(self) -> None:
        """Stop the worker and its sources, and disconnect everybody."""
        tasks = [*self.background, *(offer.task for offer in self.records.offers if offer.task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.slot.close()
        await self._cleanup.aclose()

    def heal_network(self) -> None:
        """Let the broker take and acknowledge everything again."""
        faults = self.broker.faults
        faults.loss = faults.duplicate = 0.0
        faults.delay_s = (0.0, 0.0)
        self.broker.refuses = False
        if self.bus.mute:  # what was never acknowledged keeps its slot until the connection ends
            self.bus.mute = False
            self.bus.cut()
        self.bus.heal()

    def heal(self) -> None:
        """Let everything work again."""
        self.heal_network()
        self.next.change("good")
        self.peers.mode = "away"
        self.pace.call_s, self.pace.stall_s = 0.01, 0.0
        self.script.fails = self.script.breaks_batches = False
        if self.defective:
            self.defective.broken = False

    # --- records --------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Record what passes from here on between intakes, pipeline, responders and publishers."""
        submit = self.pipeline.submit

        def submitted(sample: Sample) -> None:
            self.records.submitted.append(sample)
            self.records.answers[sample] = []
            submit(sample)

        self.pipeline.submit = submitted  # type: ignore[method-assign]
        if self.edge:
            self._record_responder(self.edge.responder)
        if self.requests:
            self._record_responder(self.requests.responder)
            self._record_expiry(self.requests)

    def _record_responder(self, responder: Any) -> None:
        send, put = responder.send, responder.outbox.put

        def sent(sample: Sample, conclusion: Conclusion) -> None:
            self.records.answers[sample].append("sent")
            send(sample, conclusion)

        def published(address: Any, body: Any, done: Callable[[int], None] = ignore, **options: Any) -> None:
            reports: list[int] = []
            self.records.reports.append(reports)
            if isinstance(body, Reply):
                self.records.replies[body.id, options["correlation"]] += 1
            put(address, body, partial(self._reported, reports, done), **options)

        responder.send, responder.outbox.put = sent, published

    def _reported(self, reports: list[int], done: Callable[[int], None], reason: int) -> None:
        reports.append(reason)
        done(reason)

    def _record_expiry(self, intake: RequestIntake) -> None:
        expire = intake.expire

        def expired(sample: Sample, *, hopeless: bool) -> None:
            if not hopeless and sample.until > asyncio.get_running_loop().time():
                self.records.problems.append("a request expired before its time")
            self.records.answers[sample].append("expired")
            expire(sample, hopeless=hopeless)

        intake.expire = expired  # type: ignore[method-assign]

    async def _result(self, delivery: Delivery[Result]) -> None:
        self.records.results.setdefault(delivery.body.id, []).append(delivery.body)

    async def _reply(self, delivery: Delivery[Reply]) -> None:
        reply = delivery.body
        self.records.delivered[reply.id, delivery.packet.correlation] += 1

    @property
    def outboxes(self) -> list[AckedPublisher[Any]]:
        """The publishers of all answers."""
        return [each.responder.outbox for each in (self.edge, self.requests) if each]  # type: ignore[misc]
