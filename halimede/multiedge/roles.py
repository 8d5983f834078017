"""The two workers of a multi-edge service: a member, which answers frames, and a joint, which combines findings.

Each is a ``RoleJob``: what runs once the worker has its connection, model, ledger, reports and metrics, which all
workers have in common. ``run_member`` and ``run_joint`` are the blocking entry points of their processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
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

    ``estimator`` is a class or an instance with ``predict`` that replaces the model; None: the model file is ONNX. All
    other settings come from the environment (docs/reference/environment.md). Exits with code 2 after a user's mistake,
    which it prints in one line.
    """
    leave(main("member", estimator, prepare=_prepare_member))


def run_joint() -> None:
    """Run the cloud worker of a multi-edge service, which has a joint, until SIGTERM or SIGINT.

    All settings come from the environment (docs/reference/environment.md). Exits with code 2 after a user's mistake,
    which it prints in one line.
    """
    leave(main("joint", prepare=_prepare_joint))


def _prepare_member(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    """Return the settings and the job of a member. Raises InvalidFieldError."""
    settings = read_member("member", environ, own_estimator=own_estimator)
    return settings.worker, member(settings)


def _prepare_joint(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    """Return the settings and the job of a joint. Raises InvalidFieldError."""
    settings = read_member("joint", environ, own_estimator=own_estimator)
    return settings.worker, joint(settings)


def member(settings: MemberSettings) -> RoleJob:
    """Return the job of an edge worker. Raises InvalidFieldError if its application cannot be made."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    worker = settings.worker

    def compose(model: Model) -> Model:
        models = {"model": model}
        if detector := worker.detector:
            confine(detector.model)
            models["detector"] = open_model(Path(detector.path), detector.model)
        return StagesModel.make(application, models, settings.parameters, worker=worker.worker, node=worker.node)

    async def run(context: WorkerContext, ready: Callable[[], None]) -> None:
        await MemberJob(settings, application, context).run(ready)

    return RoleJob(run, _announce(settings), compose, owner_kind=OWNER_KIND)


def joint(settings: MemberSettings) -> RoleJob:
    """Return the job of the cloud worker. Raises InvalidFieldError if its application is invalid or has no joint."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    if application.joint is None:
        fix = "remove it: each edge worker answers its own frames"
        raise InvalidFieldError("spec.cloudWorker", f"application {settings.application.name}", fix)
    opener = None if settings.worker.model_path else NullModelOpener()
    run = partial(_run_joint, settings, application)
    return RoleJob(run, _announce(settings), opener=opener, owner_kind=OWNER_KIND)


async def _run_joint(
    settings: MemberSettings, application: Application, context: WorkerContext, ready: Callable[[], None]
) -> None:
    """Run the joint until ``context.stop`` is set, then answer the pending findings; the ``run`` of its RoleJob."""
    peers = Membership(context.bus, topics.PEER, **settings.worker.names())
    runner = JointRunner(settings, application, context, peers)
    async with asyncio.TaskGroup() as group:
        peers.on_change(runner.changed)
        await runner.start(group)
        peers.join = runner.load
        await peers.start()
        running = group.create_task(peers.run(), name="peers")
        ready()
        await context.stop.wait()
        await peers.withdraw()
        await runner.drain(settings.worker.grace_s)
        running.cancel()
        runner.cancel()


def _announce(settings: MemberSettings) -> Announce:
    """Return the function that gives the will of the worker's connection.

    With the will, the broker removes the worker's announcement if the connection breaks.
    """
    will = peer_will(topics.PEER, settings.worker.namespace, settings.worker.service, settings.worker.worker)
    return lambda: will
