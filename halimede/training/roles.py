"""Workers of a training job: the aggregator, and the trainers on the nodes that have samples.

Both are jobs (``halimede.worker.roles``): connection, ledger, reports and metrics are common to all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from halimede import topics
from halimede.bus import Announcement, Packet
from halimede.training.aggregation import create
from halimede.training.aggregator import Aggregator
from halimede.training.settings import OWNER_KIND, TrainingSettings, read_training
from halimede.training.starvation import promised_share
from halimede.training.trainer_worker import TrainerWorker
from halimede.worker.main import leave, main
from halimede.worker.model_reload import NullModelOpener
from halimede.worker.roles import RoleJob, WorkerContext
from halimede.worker.settings import WorkerSettings


def run_aggregator() -> None:
    """Run the aggregator of a training job until SIGTERM or SIGINT. Its settings come from the environment."""
    leave(main("aggregator", prepare=_prepare_aggregator))


def run_trainer() -> None:
    """Run a trainer of a training job; see ``run_aggregator``."""
    leave(main("trainer", prepare=_prepare_trainer))


def _prepare_aggregator(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: ARG001, FBT001  # of Prepare
    settings = read_training("aggregator", environ)
    return settings.worker, aggregator(settings)


def _prepare_trainer(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: ARG001, FBT001  # of Prepare
    settings = read_training("trainer", environ)
    return settings.worker, trainer(settings)


def aggregator(settings: TrainingSettings) -> RoleJob:
    """Return the job of an aggregator. Raises InvalidFieldError for an unknown aggregation."""
    create(settings.job.aggregation, settings.job.aggregation_parameters)

    async def run(parts: WorkerContext, ready: Callable[[], None]) -> None:
        worker = Aggregator(settings, parts.bus, parts.reporter)
        parts.metrics.more.append(worker.metrics)
        async with promised_share(settings.job.cpu_share, parts.reporter):
            await worker.run(ready, parts.stop)

    return RoleJob(run, opener=NullModelOpener(), owner_kind=OWNER_KIND)


def trainer(settings: TrainingSettings) -> RoleJob:
    """Return the job of a trainer. Its will clears its state."""
    worker = settings.worker
    address = topics.TRAINER_STATE.at(node=worker.node, ns=worker.namespace, job=worker.service, trainer=worker.worker)
    cleared = Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))

    async def run(parts: WorkerContext, ready: Callable[[], None]) -> None:
        trainer_worker = TrainerWorker(settings, parts.bus, parts.reporter)
        parts.metrics.more.append(trainer_worker.metrics)
        async with promised_share(settings.job.cpu_share, parts.reporter):
            await trainer_worker.run(ready, parts.stop)

    return RoleJob(run, lambda: cleared, opener=NullModelOpener(), owner_kind=OWNER_KIND)
