"""Puts the workers of a multi-edge service together: members, which take frames, and the joint, where findings meet.

Both are jobs (``halimede.worker.roles``): connection, model, ledger, reports and metrics are those of every worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from halimede.bus import Announce
from halimede.errors import InvalidFieldError
from halimede.inference import Model, open_model
from halimede.multiedge.application import Application, create
from halimede.multiedge.joint_runner import JointRunner
from halimede.multiedge.member_worker import MemberWorkerProcess
from halimede.multiedge.membership import Membership, peer_will
from halimede.multiedge.null_model import NullModel
from halimede.multiedge.settings import OWNER_KIND, MemberSettings
from halimede.multiedge.stages_model import StagesModel
from halimede.worker.roles import RoleJob, WorkerContext


def member(settings: MemberSettings) -> RoleJob:
    """Return what an edge worker of a multi-edge service does. Raises InvalidFieldError."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    worker = settings.worker

    def compose(model: Model) -> Model:
        models = {"model": model}
        if settings.detector:
            path, spec = settings.detector
            models["detector"] = open_model(Path(path), spec)
        return StagesModel.make(application, models, settings.parameters, worker=worker.worker, node=worker.node)

    async def run(parts: WorkerContext, ready: Callable[[], None]) -> None:
        await MemberWorkerProcess(settings, application, parts).run(ready)

    return RoleJob(run, _announce(settings), compose, owner_kind=OWNER_KIND)


def joint(settings: MemberSettings) -> RoleJob:
    """Return what the cloud worker of a multi-edge service does. Raises InvalidFieldError."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    if application.joint is None:
        fix = "remove it: each edge worker answers its own frames"
        raise InvalidFieldError("spec.cloudWorker", f"application {settings.application.name}", fix)

    async def run(parts: WorkerContext, ready: Callable[[], None]) -> None:
        await _joint(settings, application, parts, ready)

    opener = None if settings.worker.model_path else NullModel()
    return RoleJob(run, _announce(settings), opener=opener, owner_kind=OWNER_KIND)


async def _joint(
    settings: MemberSettings, application: Application, parts: WorkerContext, ready: Callable[[], None]
) -> None:
    """Bring findings together until the worker is to stop."""
    worker = settings.worker
    peers = Membership(parts.bus, namespace=worker.namespace, service=worker.service, worker=worker.worker,
                  node=worker.node, intake="")  # fmt: skip
    together = JointRunner(settings, application, parts, peers)
    async with asyncio.TaskGroup() as group:
        peers.on_change(together.changed)
        await together.start(group)
        peers.join = together.load
        await peers.start()
        running = group.create_task(peers.run(), name="peers")
        ready()
        await parts.stop.wait()
        await peers.withdraw()
        await together.drain(worker.grace_s)
        running.cancel()
        together.cancel()


def _announce(settings: MemberSettings) -> Announce:
    will = peer_will(settings.worker.namespace, settings.worker.service, settings.worker.worker)
    return lambda: will
