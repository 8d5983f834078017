"""Workers of a multi-edge service: members, which take frames, and the joint, which combines findings.

Both are jobs (``halimede.worker.roles``): connection, model, ledger, reports and metrics are common to all workers.
``run_member`` and ``run_joint`` are their blocking entry points, like those of ``halimede.worker``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from halimede import topics
from halimede.bus import Announce
from halimede.errors import InvalidFieldError
from halimede.inference import Model, open_model
from halimede.inference.scripts import confine
from halimede.multiedge.application import Application, StagesModel, create
from halimede.multiedge.joint_runner import JointRunner
from halimede.multiedge.member_worker import MemberJob
from halimede.multiedge.settings import OWNER_KIND, MemberSettings, read_member
from halimede.worker.main import leave, main
from halimede.worker.membership import Membership, peer_will
from halimede.worker.model_reload import NullModelOpener
from halimede.worker.roles import RoleJob, WorkerContext
from halimede.worker.settings import WorkerSettings


def run_member(estimator: object | None = None) -> None:
    """Run an edge worker of a multi-edge service until SIGTERM or SIGINT.

    ``estimator`` is a class or an instance with ``predict`` that replaces the model; without one the model file is
    ONNX. All other settings come from the environment (docs/reference/environment.md). Exits with code 2 after a user's
    mistake, which it prints in one line.
    """
    leave(main("member", estimator, prepare=_prepare_member))


def run_joint() -> None:
    """Run the cloud worker of a multi-edge service; see ``run_member``."""
    leave(main("joint", prepare=_prepare_joint))


def _prepare_member(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    settings = read_member("member", environ, own_estimator=own_estimator)
    return settings.worker, member(settings)


def _prepare_joint(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    settings = read_member("joint", environ, own_estimator=own_estimator)
    return settings.worker, joint(settings)


def member(settings: MemberSettings) -> RoleJob:
    """Return the job of an edge worker of a multi-edge service. Raises InvalidFieldError."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    worker = settings.worker

    def compose(model: Model) -> Model:
        models = {"model": model}
        if detector := worker.detector:
            confine(detector.model)
            models["detector"] = open_model(Path(detector.path), detector.model)
        return StagesModel.make(application, models, settings.parameters, worker=worker.worker, node=worker.node)

    async def run(parts: WorkerContext, ready: Callable[[], None]) -> None:
        await MemberJob(settings, application, parts).run(ready)

    return RoleJob(run, _announce(settings), compose, owner_kind=OWNER_KIND)


def joint(settings: MemberSettings) -> RoleJob:
    """Return the job of the cloud worker of a multi-edge service. Raises InvalidFieldError."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    if application.joint is None:
        fix = "remove it: each edge worker answers its own frames"
        raise InvalidFieldError("spec.cloudWorker", f"application {settings.application.name}", fix)

    async def run(parts: WorkerContext, ready: Callable[[], None]) -> None:
        await _run_joint(settings, application, parts, ready)

    opener = None if settings.worker.model_path else NullModelOpener()
    return RoleJob(run, _announce(settings), opener=opener, owner_kind=OWNER_KIND)


async def _run_joint(
    settings: MemberSettings, application: Application, parts: WorkerContext, ready: Callable[[], None]
) -> None:
    """Run the joint until the worker is stopped."""
    worker = settings.worker
    address = {"namespace": worker.namespace, "service": worker.service, "worker": worker.worker}
    peers = Membership(parts.bus, topics.PEER, **address, node=worker.node)
    runner = JointRunner(settings, application, parts, peers)
    async with asyncio.TaskGroup() as group:
        peers.on_change(runner.changed)
        await runner.start(group)
        peers.join = runner.load
        await peers.start()
        running = group.create_task(peers.run(), name="peers")
        ready()
        await parts.stop.wait()
        await peers.withdraw()
        await runner.drain(worker.grace_s)
        running.cancel()
        runner.cancel()


def _announce(settings: MemberSettings) -> Announce:
    will = peer_will(topics.PEER, settings.worker.namespace, settings.worker.service, settings.worker.worker)
    return lambda: will
