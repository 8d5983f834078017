"""The jobs of a joint inference service: a small model at the edge, a big one in the cloud."""

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
from halimede.worker.hard_sample_writer import keeping
from halimede.worker.membership import Membership, peer_will
from halimede.worker.preview_publisher import PreviewPublisher
from halimede.worker.roles import RoleJob, WorkerContext, origin, serve_requests, uploading
from halimede.worker.session_failover import FailoverSource, intake_id
from halimede.worker.settings import WorkerSettings
from halimede.worker.status_reporter import CALIBRATION_DIFFERS, CALIBRATION_INVALID
from halimede.worker.threshold_file import keeping_thresholds, read_thresholds
from halimede.worker.version_calibration import VersionCalibrations, pixels_trouble

#: most camera frames in flight to a worker: each is acknowledged when it is answered
INTAKE_RECEIVE_MAXIMUM = EdgeLimits().inside


def joint_inference(settings: WorkerSettings) -> RoleJob:
    """Return the job of a worker of a joint inference service."""
    if settings.role == "edge":
        gone = peer_will(topics.EDGE_PEER, settings.namespace, settings.service, settings.worker)
        return RoleJob(_edge, lambda: gone, compose=partial(_with_committee, settings))
    will = load_will(settings.namespace, settings.service, settings.worker)
    return RoleJob(_cloud, lambda: will)


def _with_committee(settings: WorkerSettings, model: Model) -> Model:
    """Return the worker's model with those of its committee. Raises ModelError, InvalidFieldError."""
    for _, spec in settings.committee:
        confine(spec)
    return open_committee(model, settings.committee, threads=settings.threads)


async def _edge(parts: WorkerContext, ready: Callable[[], None]) -> None:
    """Answer frames until ``stop``, then drain; ``ready`` is called once frames arrive."""
    settings, ledger = parts.settings, parts.ledger
    # hard samples that the next tier did not take stay charged to the budget
    uploaded, samples = max(ledger[Count.UPLOADED], ledger[Count.HARD] - ledger[Count.WITHHELD]), ledger[Count.ANSWERED]
    miner = create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
    policy = create_policy(
        settings,
        miner,
        random.random,
        uploaded=uploaded,
        samples=samples,
        audits=lambda: parts.slot.audit_share,
        thresholds=read_thresholds(settings),
    )
    known = {"namespace": settings.namespace, "service": settings.service, "worker": settings.worker}
    cameras = settings.source.cameras
    peers = Membership(
        parts.bus, topics.EDGE_PEER, **known, node=settings.node, intake=intake_id(settings) if cameras else ""
    )
    source = FailoverSource(
        parts,
        peers,
        group=settings.service,
        cameras=cameras,
        receive_maximum=INTAKE_RECEIVE_MAXIMUM,
        durable=bool(cameras),
    )
    channel = inference(settings.namespace, settings.service, settings.worker, tier=settings.next_tier)
    offload = OffloadClient(parts.bus, channel)
    tier = NextTier(deadline_s=settings.deadline_s, uploads=Count.UPLOADED)
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    async with (
        ModelThread("decode") as decoder,
        uploading(parts, offload.circuit) as encoder,
        keeping(parts) as keeper,
        keeping_thresholds(settings, policy.thresholds),
        open_detector(parts) as detector_slot,
        asyncio.TaskGroup() as group,
    ):
        if keeper and policy.audits:
            keeper.audit_share = policy.audits.present
        previews = PreviewPublisher(parts.bus, decoder, settings) if settings.hard_samples else None
        address = topics.RESULT.at(ns=settings.namespace, service=settings.service)
        outbox, crops = result_outbox(parts.bus), CropOutbox()
        responder = ResultResponder(
            origin(settings),
            crops if detector_slot else outbox,
            address,
            ledger,
            trace_buffer=None if detector_slot else parts.trace_buffer,
            tier=tier,
            previews=previews,
            keeper=keeper,
        )
        detector = frame_responder = None
        if settings.detector and detector_slot:
            kind = crop_task(settings)
            detector = CropDetector(detector_slot, settings.detector.boxes, kind, responder, crops)
            frame_responder = FrameResponder(
                origin(settings), outbox, address, ledger, trace_buffer=parts.trace_buffer, crops=responder, task=kind
            )
        worker = EdgeWorker(
            parts.slot,
            frame_responder or responder,
            ledger,
            decoder,
            trace_buffer=parts.trace_buffer,
            limits=EdgeLimits(max_age_s=settings.source.max_age_s),
            miner=miner,
            mines_first=settings.hem_mode == BEFORE,
            escalation=Escalation(
                offload, ledger, tier=tier, policy=policy, encoder=encoder, audited=responder.audited
            ),
            detector=detector,
        )
        calibrations = VersionCalibrations(settings, worker.inference, policy, encoder)
        calibrations.begin(parts.slot.current)
        parts.slot.adopt = calibrations.adopt
        parts.reporter.troubles += [
            (CALIBRATION_INVALID, lambda: calibrations.trouble),
            (
                CALIBRATION_DIFFERS,
                lambda: pixels_trouble(calibrations.current_file, parts.slot.current.desired),
            ),
        ]
        await offload.start()
        running = [group.create_task(worker.run(), name="edge worker")]
        if previews:
            running.append(group.create_task(previews.run(), name="previews"))
        running.append(group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch"))
        if detector_slot:
            running.append(group.create_task(detector_slot.watch(settings.model_timeout_s), name="detector watch"))
        parts.metrics.edge, parts.metrics.offload = worker, offload
        parts.metrics.policy = policy
        await source.start(worker.intake, group)
        ready()
        await parts.stop.wait()
        await source.leave(settings.grace_s, worker.drain)
        for task in running:
            task.cancel()


async def _cloud(parts: WorkerContext, ready: Callable[[], None]) -> None:
    """Answer requests until ``stop``, then drain: see ``_edge``."""
    settings = parts.settings
    worker = RequestWorker(
        parts.bus,
        parts.slot,
        inference(settings.namespace, settings.service, settings.worker, tier=settings.tier),
        limits=RequestLimits(batch=settings.batch, delay_s=settings.delay_s),
        trace_buffer=parts.trace_buffer,
    )
    await serve_requests(parts, worker, ready)
