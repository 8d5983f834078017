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
from halimede.multiedge.joint_runner import Together
from halimede.multiedge.member_worker import Member
from halimede.multiedge.membership import Peers, peer_will
from halimede.multiedge.null_model import NoModel
from halimede.multiedge.settings import OWNER_KIND, MemberSettings
from halimede.multiedge.stages_model import StagesModel
from halimede.worker.roles import Job, Parts


def member(settings: MemberSettings) -> Job:
    """Return what an edge worker of a multi-edge service does. Raises InvalidFieldError."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    worker = settings.worker

    def compose(model: Model) -> Model:
        models = {"model": model}
        if settings.detector:
            path, spec = settings.detector
            models["detector"] = open_model(Path(path), spec)
        return StagesModel.make(application, models, settings.parameters, worker=worker.worker, node=worker.node)

    async def run(parts: Parts, ready: Callable[[], None]) -> None:
        await Member(settings, application, parts).run(ready)

    return Job(run, _announce(settings), compose, owner_kind=OWNER_KIND)


def joint(settings: MemberSettings) -> Job:
    """Return what the cloud worker of a multi-edge service does. Raises InvalidFieldError."""
    application = create(settings.application.name, settings.application.entry, settings.parameters)
    if application.joint is None:
        fix = "remove it: each edge worker answers its own frames"
        raise InvalidFieldError("spec.cloudWorker", f"application {settings.application.name}", fix)

    async def run(parts: Parts, ready: Callable[[], None]) -> None:
        await _joint(settings, application, parts, ready)

    opener = None if settings.worker.model_path else NoModel()
    return Job(run, _announce(settings), opener=opener, owner_kind=OWNER_KIND)


async def _joint(settings: MemberSettings, application: Application, parts: Parts, ready: Callable[[], None]) -> None:
    """Bring findings together until the worker is to stop."""
    worker = settings.worker
    peers = Peers(parts.bus, namespace=worker.namespace, service=worker.service, worker=worker.worker,
                  node=worker.node, intake="")  # fmt: skip
    together = Together(settings, application, parts, peers)
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
