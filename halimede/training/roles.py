"""The workers of a training job: the aggregator, and the trainers on the nodes that have samples.

Each is a ``RoleJob``: what runs once the worker has its connection, ledger, reports and metrics, which all workers have
in common. ``run_aggregator`` and ``run_trainer`` are the blocking entry points of their processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from halimede import topics
from halimede.bus import Announcement, Bus, Packet
from halimede.training.aggregation import create
from halimede.training.aggregator import Aggregator
from halimede.training.settings import OWNER_KIND, TrainingSettings, read_training
from halimede.training.starvation import promised_share
from halimede.training.trainer_worker import TrainerWorker
from halimede.worker.main import leave, main
from halimede.worker.model_reload import NullModelOpener
from halimede.worker.roles import RoleJob, WorkerContext
from halimede.worker.settings import WorkerSettings
from halimede.worker.status_reporter import StatusReporter

#: makes an aggregator or a trainer
PartyFactory = Callable[[TrainingSettings, Bus, StatusReporter], Aggregator | TrainerWorker]


def run_aggregator() -> None:
    """Run the aggregator of a training job until SIGTERM or SIGINT.

    Its settings come from the environment (docs/reference/environment.md). Exits with code 2 after a user's mistake,
    which it prints in one line.
    """
    leave(main("aggregator", prepare=_prepare_aggregator))


def run_trainer() -> None:
    """Run a trainer of a training job until SIGTERM or SIGINT.

    Its settings come from the environment (docs/reference/environment.md). Exits with code 2 after a user's mistake,
    which it prints in one line.
    """
    leave(main("trainer", prepare=_prepare_trainer))


def _prepare_aggregator(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: ARG001, FBT001  # of Prepare
    """Return the settings and the job of an aggregator. Raises InvalidFieldError."""
    settings = read_training("aggregator", environ)
    return settings.worker, aggregator(settings)


def _prepare_trainer(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: ARG001, FBT001  # of Prepare
    """Return the settings and the job of a trainer. Raises InvalidFieldError."""
    settings = read_training("trainer", environ)
    return settings.worker, trainer(settings)


def aggregator(settings: TrainingSettings) -> RoleJob:
    """Return the job of an aggregator. Raises InvalidFieldError for an unknown aggregation or invalid parameters."""
    create(settings.job.aggregation, settings.job.aggregation_parameters)
    run = partial(_run_party, settings, Aggregator)
    return RoleJob(run, opener=NullModelOpener(), owner_kind=OWNER_KIND)


def trainer(settings: TrainingSettings) -> RoleJob:
    """Return the job of a trainer. If its process is killed, the broker clears its retained state (MQTT's will)."""
    worker = settings.worker
    address = topics.TRAINER_STATE.at(node=worker.node, ns=worker.namespace, job=worker.service, trainer=worker.worker)
    cleared = Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))
    run = partial(_run_party, settings, TrainerWorker)
    return RoleJob(run, lambda: cleared, opener=NullModelOpener(), owner_kind=OWNER_KIND)


async def _run_party(
    settings: TrainingSettings, make: PartyFactory, context: WorkerContext, ready: Callable[[], None]
) -> None:
    """Run an aggregator or a trainer until ``context.stop`` is set; the ``run`` of its RoleJob."""
    party = make(settings, context.bus, context.reporter)
    context.metrics.collectors.append(party.metrics)
    async with promised_share(settings.job.cpu_share, context.reporter):
        await party.run(ready, context.stop)
