"""The jobs of a joint inference service: an edge worker with a small model, a cloud worker with a big one.

A job is what runs once the worker has its connection, model, ledger, reports and metrics.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from halimede import topics
from halimede.api.mining import BEFORE
from halimede.inference import Model, open_committee
from halimede.inference.scripts import confine
from halimede.messages import Count
from halimede.mining import create as create_miner
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.load_advertiser import load_will
from halimede.pipeline.crops import CropDetector, CropOutbox, FrameResponder
from halimede.pipeline.escalation import Escalation, NextTier
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import EdgeLimits, RequestLimits
from halimede.pipeline.responders import ResultResponder, result_outbox
from halimede.pipeline.upload_policy.policy import create as create_policy
from halimede.pipeline.workers import EdgeWorker, RequestWorker
from halimede.worker.detector import crop_task, open_detector
from halimede.worker.hard_sample_writer import open_hard_sample_writer
from halimede.worker.membership import Membership, peer_will
from halimede.worker.occupancy_publisher import OccupancyPublisher
from halimede.worker.preview_publisher import PreviewPublisher
from halimede.worker.roles import RoleJob, WorkerContext, open_encoder, origin, serve_requests
from halimede.worker.session_failover import FailoverSource, intake_id
from halimede.worker.settings import WorkerSettings
from halimede.worker.status_reporter import CALIBRATION_DIFFERS, CALIBRATION_INVALID, SUBSCRIPTION_REFUSED
from halimede.worker.threshold_file import keeping_thresholds, read_thresholds
from halimede.worker.version_calibration import VersionCalibrations, pixels_trouble

#: most camera frames in flight to a worker: each is acknowledged when it is answered
INTAKE_RECEIVE_MAXIMUM = EdgeLimits().inside


def joint_inference(settings: WorkerSettings) -> RoleJob:
    """Return the job of a worker of a joint inference service, by its role."""
    if settings.role == "edge":
        announcement = peer_will(topics.EDGE_PEER, settings.namespace, settings.service, settings.worker)
        return RoleJob(_edge, lambda: announcement, compose=partial(_with_committee, settings))
    will = load_will(settings.namespace, settings.service, settings.worker)
    return RoleJob(_cloud, lambda: will)


def _with_committee(settings: WorkerSettings, model: Model) -> Model:
    """Return the worker's model together with the further models of its committee, if it has one.

    Raises ModelError, InvalidFieldError.
    """
    for _, spec in settings.committee:
        confine(spec)  # if the model has scripts, this thread may write no files from now on
    return open_committee(model, settings.committee, threads=settings.threads)


async def _edge(context: WorkerContext, ready: Callable[[], None]) -> None:
    """Answer frames until ``context.stop`` is set, then drain; ``ready`` is called once frames arrive.

    Raises InvalidFieldError or WorkerError for a user's mistake, perhaps in an ExceptionGroup.
    """
    settings, ledger = context.settings, context.ledger
    # what decides: which samples are hard, and which of them go to the next tier
    # hard samples that the next tier did not take stay charged to the budget
    uploaded, samples = max(ledger[Count.UPLOADED], ledger[Count.HARD] - ledger[Count.WITHHELD]), ledger[Count.ANSWERED]
    miner = create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
    policy = create_policy(
        settings,
        miner,
        random.random,
        uploaded=uploaded,
        samples=samples,
        audits=lambda: context.slot.audit_share,
        thresholds=read_thresholds(settings),
    )
    # where frames come from, and the next tier
    cameras = settings.source.cameras
    peers = Membership(context.bus, topics.EDGE_PEER, **settings.names(), intake=intake_id(settings) if cameras else "")
    source = FailoverSource(
        context,
        peers,
        group=settings.service,
        cameras=cameras,
        receive_maximum=INTAKE_RECEIVE_MAXIMUM,
        durable=bool(cameras),
    )
    channel = inference(settings.namespace, settings.service, settings.worker, tier=settings.next_tier)
    offload = OffloadClient(context.bus, channel)
    tier = NextTier(deadline_s=settings.deadline_s, uploads=Count.UPLOADED)
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    async with (
        ModelThread("decode") as decoder,
        open_encoder(context, offload.circuit) as encoder,
        open_hard_sample_writer(context) as keeper,
        keeping_thresholds(settings, policy.thresholds),
        open_detector(context) as detector_slot,
        asyncio.TaskGroup() as group,
    ):
        if keeper and policy.audits:
            keeper.audit_share = policy.audits.present
        # what answers frames, or crops if there is a detector
        previews = PreviewPublisher(context.bus, decoder, settings) if settings.hard_samples else None
        address = topics.RESULT.at(ns=settings.namespace, service=settings.service)
        outbox, crops = result_outbox(context.bus), CropOutbox()
        responder = ResultResponder(
            origin(settings),
            crops if detector_slot else outbox,
            address,
            ledger,
            trace_buffer=None if detector_slot else context.trace_buffer,
            tier=tier,
            previews=previews,
            keeper=keeper,
            sizes=settings.occupancy is not None and not detector_slot,
        )
        detector = frame_responder = None
        if settings.detector and detector_slot:
            kind = crop_task(settings)
            detector = CropDetector(detector_slot, settings.detector.boxes, kind, responder, crops)
            frame_responder = FrameResponder(
                responder, outbox, context.trace_buffer, kind, sizes=settings.occupancy is not None
            )
        worker = EdgeWorker(
            context.slot,
            frame_responder or responder,
            ledger,
            decoder,
            trace_buffer=context.trace_buffer,
            limits=EdgeLimits(max_age_s=settings.source.max_age_s),
            miner=miner,
            mines_first=settings.hem_mode == BEFORE,
            escalation=Escalation(
                offload, ledger, tier=tier, policy=policy, encoder=encoder, audited=responder.audited
            ),
            detector=detector,
        )
        calibrations = VersionCalibrations(settings, worker.inference, policy, encoder)
        calibrations.begin(context.slot.current)
        context.slot.adopt = calibrations.adopt
        context.reporter.troubles += [
            (CALIBRATION_INVALID, lambda: calibrations.trouble),
            (CALIBRATION_DIFFERS, lambda: pixels_trouble(calibrations.current_file, context.slot.current.desired)),
        ]
        # run until the stop, then drain
        await offload.start()
        running = [group.create_task(worker.run(), name="edge worker")]
        if previews:
            running.append(group.create_task(previews.run(), name="previews"))
        running.append(group.create_task(context.slot.watch(settings.model_timeout_s), name="model watch"))
        if detector_slot:
            running.append(group.create_task(detector_slot.watch(settings.model_timeout_s), name="detector watch"))
        context.metrics.edge, context.metrics.offload = worker, offload
        context.metrics.policy = policy
        events = await _start_occupancy(context, peers)
        if events:
            running.append(group.create_task(events.run(), name="occupancy"))
        await source.start(worker.intake, group)
        ready()
        await context.stop.wait()
        await source.leave(settings.grace_s, worker.drain)
        if events:
            await events.drain()
        for task in running:
            task.cancel()


async def _start_occupancy(context: WorkerContext, peers: Membership) -> OccupancyPublisher | None:
    """Return the started publisher of the service's occupancy events; None if the service has none."""
    rules = context.settings.occupancy
    if rules is None:
        return None
    publisher = OccupancyPublisher(context.bus, context.settings, rules, peers)
    context.metrics.collectors.append(publisher.metrics)
    context.reporter.troubles.append((SUBSCRIPTION_REFUSED, lambda: publisher.trouble))
    await publisher.start()
    return publisher


async def _cloud(context: WorkerContext, ready: Callable[[], None]) -> None:
    """Answer requests until ``context.stop`` is set, then drain; ``ready`` is called once requests arrive."""
    settings = context.settings
    worker = RequestWorker(
        context.bus,
        context.slot,
        inference(settings.namespace, settings.service, settings.worker, tier=settings.tier),
        limits=RequestLimits(batch=settings.batch, delay_s=settings.delay_s),
        trace_buffer=context.trace_buffer,
    )
    await serve_requests(context, worker, ready)
