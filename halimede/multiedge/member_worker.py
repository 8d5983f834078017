"""An edge worker of a multi-edge service: runs stages on frames, sends findings to the joint, publishes results.

Its parts are independent: ``Membership`` (which workers are online), ``FailoverSource`` (its own frames, and those of
workers that have ended), ``PeerOffload`` and ``SpareCapacity`` (frames to and from other workers), ``JointClient``
(findings to the worker that decides), ``JointRunner`` (the joint, if this worker may decide).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.messages import Count, Load
from halimede.multiedge import peer_offload
from halimede.multiedge.application import Application
from halimede.multiedge.joint_runner import JointRunner
from halimede.multiedge.peer_offload import JointClient, PeerOffload, SpareCapacity
from halimede.multiedge.settings import MemberSettings
from halimede.observe.metrics import counter
from halimede.offload.channel import hop
from halimede.pipeline.escalation import Escalation, NextTier
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import EdgeLimits, RequestIntake
from halimede.pipeline.responders import ResultResponder, result_outbox
from halimede.pipeline.workers import EdgeWorker
from halimede.worker.membership import Membership
from halimede.worker.roles import WorkerContext, origin
from halimede.worker.session_failover import FailoverSource, intake_id

#: frames that the broker may have in flight to a member: each is acknowledged once it is answered
INTAKE_RECEIVE_MAXIMUM = 64
#: ending of the group of the shared subscription to frames: a group shares the frames of a camera. A service of another
#: kind with the same name has another group, and also receives all frames
GROUP = "multi-edge"


class MemberJob:
    """One edge worker, which runs ``application``. Call ``run`` once.

    ``context``: the connection, model slot, ledger and metrics that all workers have.
    """

    def __init__(self, settings: MemberSettings, application: Application, context: WorkerContext) -> None:
        worker, bus = settings.worker, context.bus
        self._settings, self._application, self._context = settings, application, context
        self._worker = worker
        #: the broker keeps this worker's frames while it is away, and another worker may take them over
        self._durable = settings.application.takeover
        self._group = f"{worker.service}.{GROUP}"
        intake = intake_id(worker) if self._durable and worker.source.cameras else ""
        self._peers = Membership(bus, topics.PEER, **worker.names(), intake=intake)
        self._source = FailoverSource(
            context,
            self._peers,
            group=self._group,
            cameras=settings.cameras,
            receive_maximum=INTAKE_RECEIVE_MAXIMUM,
            durable=self._durable,
            camera=settings.part,
        )
        names = (worker.namespace, worker.service, worker.worker)
        self._joint_client = JointClient(bus, *names, self._peers) if application.joint else None
        runs_joint = application.joint and settings.members_join
        self._joint_runner = JointRunner(settings, application, context, self._peers) if runs_joint else None
        self._peer_offload = PeerOffload(bus, *names, self._local_load) if application.share else None
        self._requests: RequestIntake | None = None
        if self._joint_runner:
            self._peers.join = self._joint_runner.load

    async def run(self, ready: Callable[[], None]) -> None:
        """Process frames until ``context.stop`` is set, then answer what was accepted. Call it once.

        ``ready`` is called when the worker accepts frames. Raises an ExceptionGroup if a task of the worker fails.
        """
        context, worker = self._context, self._worker
        async with ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
            edge = self._edge = self._edge_worker(decoder)
            requests = self._requests = self._peer_requests(edge) if self._peer_offload else None
            await self._subscribe(group)
            running = [
                group.create_task(edge.run(), name="edge worker"),
                group.create_task(context.slot.watch(worker.model_timeout_s), name="model watch"),
            ]
            if requests:
                running.append(group.create_task(requests.run(), name="share"))
            self._export_counters(edge)
            await self._source.start(edge.intake, group)
            ready()
            await context.stop.wait()
            await self._drain()
            for task in running:
                task.cancel()
            if self._joint_runner:
                self._joint_runner.cancel()

    def _edge_worker(self, decoder: ModelThread) -> EdgeWorker:
        """Return the pipeline of this worker's own frames."""
        context, worker = self._context, self._worker
        tier = NextTier(by="joint", hard=False, deadline_s=worker.deadline_s)
        responder = ResultResponder(
            origin(worker),
            result_outbox(context.bus),
            topics.MULTI_RESULT.at(ns=worker.namespace, service=worker.service),
            context.ledger,
            trace_buffer=context.trace_buffer,
            tier=tier,
        )
        return EdgeWorker(
            context.slot,
            responder,
            context.ledger,
            decoder,
            limits=EdgeLimits(max_age_s=worker.source.max_age_s),
            trace_buffer=context.trace_buffer,
            miner=self._application.joins if self._joint_client else None,
            escalation=Escalation(self._joint_client, context.ledger, tier=tier) if self._joint_client else None,
            peers=self._peer_offload,
            deadline_s=worker.deadline_s,
        )

    def _peer_requests(self, edge: EdgeWorker) -> RequestIntake:
        """Return the intake of the frames of other workers, which go into the pipeline of ``edge`` as well."""
        worker, bus = self._worker, self._context.bus
        capacity = SpareCapacity(self._local_load, self._peers.touch, lambda: len(self._peers.others))
        self._peers.share = capacity.load
        channel = hop(worker.namespace, worker.service, peer_offload.SHARE, worker.worker)
        return RequestIntake(
            bus,
            channel,
            edge.pipeline,
            limits=peer_offload.LIMITS,
            trace_buffer=self._context.trace_buffer,
            advertiser=capacity,
            busy=capacity.is_overloaded,
        )

    async def _subscribe(self, group: asyncio.TaskGroup) -> None:
        """Connect the parts with the announcements of other workers, and start them."""
        for client in (self._joint_client, self._peer_offload, self._joint_runner):
            if client:
                self._peers.on_change(client.changed)
        self._peers.on_change(lambda *_: self._edge.pipeline.rebalance())
        for client in (self._joint_client, self._peer_offload):
            if client:
                await client.start()
        if self._joint_runner:
            await self._joint_runner.start(group)

    async def _drain(self) -> None:
        """Answer the accepted frames, then the requests of other workers, within the grace period.

        First no more requests are accepted, which may take 1/6 of the period; the answers to frames may take 2/3 of it.
        """
        clock, grace_s = asyncio.get_running_loop(), self._worker.grace_s
        until = clock.time() + grace_s
        if self._requests:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s / 6):
                    await self._requests.stop()
        await self._source.leave(grace_s * 2 / 3, self._edge.drain)
        for replies in (self._joint_runner, self._requests and self._requests.responder.outbox):
            if replies:
                await replies.drain(max(until - clock.time(), 0))

    def _local_load(self) -> Load:
        """Return the load of this worker's model, with its own frames and those of peers."""
        return self._edge.pipeline.load()

    # --- metrics ----------------------------------------------------------------------------------------------------

    def _export_counters(self, edge: EdgeWorker) -> None:
        """Let the ledger and the metrics follow the counters of this worker's parts."""
        context, requests = self._context, self._requests
        clients = [client for client in (self._joint_client, self._peer_offload) if client]
        context.ledger.follow(Count.LATE, lambda: sum(client.late for client in clients))
        context.ledger.follow(Count.UNASKED, lambda: sum(client.unknown for client in clients))
        if requests:
            context.ledger.follow(Count.SERVED, lambda: requests.stats.served)
            context.ledger.follow(Count.BATCHES, lambda: requests.times.batch.count)
        context.metrics.edge, context.metrics.offload = edge, clients[0] if clients else None
        context.metrics.collectors.append(self._metrics)

    def _metrics(self) -> Iterator[Metric]:
        """Yield the metric of the frames that were sent to other workers, if frames are shared."""
        if self._peer_offload:
            counts = {"answered": self._peer_offload.shared, "returned": self._peer_offload.returned}
            samples = [({"outcome": outcome}, count) for outcome, count in counts.items()]
            text = "Multi-edge: frames sent to a peer: answered there, or answered here after all."
            yield counter("worker_shared_frames", text, samples)
