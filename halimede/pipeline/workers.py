"""Two workers, each a pipeline with its intake: ``EdgeWorker`` answers frames of cameras, ``RequestWorker`` requests.

A tier between edge and cloud is a RequestWorker with an ``Escalation``. A member of a multi-edge service is an
EdgeWorker, with a ``RequestIntake`` on the same pipeline for the frames of its peers.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from halimede.bus import Bus
from halimede.mining import Miner
from halimede.offload.channel import Channel
from halimede.offload.load_advertiser import LoadAdvertisement
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.crops import CropDetector
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import Inference
from halimede.pipeline.intake import EdgeLimits, FrameIntake, RequestIntake, RequestLimits
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.observer import IntakeMetrics, Observer
from halimede.pipeline.pipeline import Abandonable, PeerClient, Pipeline
from halimede.pipeline.responders import ResultResponder
from halimede.stats.ledger import Ledger
from halimede.tracing import TraceBuffer

log = structlog.get_logger()


class EdgeWorker:
    """Answers frames: ``intake.offer`` accepts them, ``run`` answers them until cancelled; ``drain`` before that.

    ``slot``: the models. ``responder``: publishes the results. ``ledger``: counts frames and answers. ``decoder``: the
    thread that decodes frames. ``trace_buffer``: has the traces; None: a new one, without export. ``limits``: None: the
    defaults. ``miner``: judges predictions, or (``mines_first``) frames before inference; None: there is no mining.
    ``escalation``: requests the next tier; None: there is none. ``peers``: may answer frames in place of the model,
    each within ``deadline_s`` seconds; None: there are none. ``detector``: its crops are the samples; None: frames are.

    Attributes:
        intake: accepts the frames.
        frames: the pipeline of the frames: that of the detector, if there is one.
        pipeline: the pipeline of the samples.
        inference: runs and mines the samples of ``pipeline``.
        times: distributions of durations, those of the responder.

    """

    def __init__(
        self,
        slot: ModelSlot,
        responder: ResultResponder,
        ledger: Ledger,
        decoder: ModelThread,
        *,
        trace_buffer: TraceBuffer | None = None,
        limits: EdgeLimits | None = None,
        miner: Miner | None = None,
        mines_first: bool = False,
        escalation: Escalation | None = None,
        peers: PeerClient | None = None,
        deadline_s: float = math.inf,
        detector: CropDetector | None = None,
    ) -> None:
        limits, trace_buffer = limits or EdgeLimits(), trace_buffer or TraceBuffer()
        rate = ServiceRate(queue=limits.inside, batch=limits.batch, horizon_s=limits.horizon_s)
        self.times = responder.times
        self.responder = responder
        self.inference = Inference(limits.batch, None if mines_first else miner)
        self.pipeline = Pipeline(
            slot, rate, self.inference, Observer(rate, trace_buffer), peers=peers, deadline_s=deadline_s
        )
        self.escalation = escalation
        metrics = IntakeMetrics.at_edge(self.times, ledger)
        self.frames = self.pipeline
        if detector:
            self.frames = detector.pipeline(
                self.pipeline,
                limits=limits,
                metrics=metrics,
                escalation=escalation,
                decoder=decoder,
                trace_buffer=trace_buffer,
            )
        self.intake = FrameIntake(
            self.frames,
            responder,
            metrics,
            ledger=ledger,
            decoder=decoder,
            trace_buffer=trace_buffer,
            limits=limits,
            escalation=None if detector else escalation,
            miner=miner if mines_first else None,
        )

    async def run(self) -> None:
        """Answer frames until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.responder.outbox.run(), name="results")
            group.create_task(self.pipeline.run(), name="pipeline")
            if self.frames is not self.pipeline:
                group.create_task(self.frames.run(), name="frames")

    async def drain(self, timeout_s: float) -> bool:
        """Answer the pending frames, then accept no more; wait at most ``timeout_s`` seconds.

        Returns whether all results were delivered. In the last third, requests to the next tier and to peers are
        abandoned.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        clients: list[Abandonable] = [client for client in (self.escalation, self.pipeline.peers) if client]
        answered = await self.frames.drain(timeout_s, *clients)
        delivered = await self.responder.outbox.drain(max(until - loop.time(), 0))
        self.intake.close()
        return answered and delivered and not self.frames.inside


class RequestWorker:
    """Answers the requests on a channel: ``run`` until cancelled; ``drain`` before that.

    ``slot``: the models. ``limits``: None: the defaults. ``trace_buffer``: has the traces; None: a new one, without
    export. ``advertiser``: publishes this worker's load; None: the intake does, on the channel's load topic.
    ``escalation``: requests the next tier, for a worker that is a tier; None: there is no next tier. ``miner``: judges
    predictions, or (``mines_samples``) samples before inference, for the escalation. ``ledger``: counts escalations.

    Attributes:
        intake: accepts the requests.
        pipeline: answers them.

    """

    def __init__(
        self,
        bus: Bus,
        slot: ModelSlot,
        channel: Channel,
        *,
        limits: RequestLimits | None = None,
        trace_buffer: TraceBuffer | None = None,
        advertiser: LoadAdvertisement | None = None,
        escalation: Escalation | None = None,
        miner: Miner | None = None,
        mines_samples: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        limits, trace_buffer = limits or RequestLimits(), trace_buffer or TraceBuffer()
        rate = ServiceRate(queue=limits.queue, batch=limits.batch, horizon_s=limits.horizon_s, lanes=slot.lanes)
        infer = Inference(limits.batch, miner, mines_samples=mines_samples)
        self.pipeline = Pipeline(slot, rate, infer, Observer(rate, trace_buffer), delay_s=limits.delay_s)
        self.intake = RequestIntake(
            bus,
            channel,
            self.pipeline,
            limits=limits,
            trace_buffer=trace_buffer,
            advertiser=advertiser,
            escalation=escalation,
            ledger=ledger,
        )

    async def run(self) -> None:
        """Subscribe to requests, and answer them until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pipeline.run(), name="pipeline")
            await self.intake.run()

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests, answer the pending ones, and wait at most ``timeout_s`` seconds.

        Returns whether all replies were delivered. In the last third, requests to the next tier are abandoned.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(until):
                await self.intake.stop()
        except TimeoutError:
            log.warning("requests not answered in time", left=self.pipeline.inside)
            return False
        clients: list[Abandonable] = [self.intake.escalation] if self.intake.escalation else []
        answered = await self.pipeline.drain(until - loop.time(), *clients)
        delivered = await self.intake.responder.outbox.drain(max(until - loop.time(), 0))
        return answered and delivered
