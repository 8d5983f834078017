"""A federated job whose trainers are Sedna's scripts: their estimators train in the script's own process.

``aggregate`` runs the aggregator, ``ScriptTrainer`` one participant. The messages are those of any training job. Only
the first weights differ: in Sedna each participant begins with its own. So the aggregator begins with zeros, and a
participant that receives zeros trains from where it is; the mean of what all report is then the mean of their weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from halimede import topics
from halimede.bus import Announcement, Bus, Delivery, Packet
from halimede.bus.mqtt import MqttSettings
from halimede.compat.sedna import environment
from halimede.errors import HalimedeError, InvalidFieldError, describe_exception, first_error, shorten_middle
from halimede.messages import TensorSpec, TrainerState, TrainingRound
from halimede.training.aggregator import Aggregator
from halimede.training.child_messages import TrainingResult
from halimede.training.settings import OWNER_KIND, JobSettings, TrainingSettings
from halimede.training.starvation import promised_share
from halimede.training.tensor_file import decode, encode
from halimede.training.trainer_worker import TrainerWorker
from halimede.training.weights import Weights, difference, specs_of
from halimede.worker.main import connect_to
from halimede.worker.settings import Role, WorkerSettings, read_json
from halimede.worker.status_reporter import StatusReporter

log = structlog.get_logger()

#: seconds that participants have to receive the end of the job
LEAVE_S = 10.0
#: seconds between two checks: whether the thread of the bus has ended, and whether the next step can be handed over
POLL_S = 0.5


def script_settings(role: Role) -> WorkerSettings:
    """Return the settings of a script of a federated job from the environment. Raises InvalidFieldError."""
    name = os.environ.get("SERVICE_NAME", "")
    return environment.settings(role, {"SERVICE_UID": f"script-{name}"[:64], **os.environ})


def run_of_job() -> str:
    """Return what identifies the training if a FederatedLearningJob has started the script, else empty text."""
    return read_json(os.environ, "TRAINING", JobSettings).run if os.environ.get("TRAINING") else ""


class ScriptAggregator(Aggregator):
    """An ``Aggregator`` of the updates of the first ``participants`` trainers that report; it makes no ONNX model.

    ``done`` is set after the last round, when each participant has evaluated the final weights.
    """

    def __init__(self, settings: TrainingSettings, bus: Bus, reporter: StatusReporter, participants: int) -> None:
        super().__init__(settings, bus, reporter)
        self.done = asyncio.Event()
        self._participants = participants

    async def leave(self) -> None:
        """Wait until all participants have left, at most ``LEAVE_S`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while self._states:
                    self._changed.clear()
                    await self._changed.wait()

    async def _on_state(self, delivery: Delivery[TrainerState]) -> None:
        """Record the state of a trainer; the first ``participants`` trainers become those of the job."""
        trainers = self._settings.job.trainers
        if len(trainers) < self._participants:
            trainers.setdefault(delivery.names["trainer"], delivery.names["node"])
        await super()._on_state(delivery)

    async def _begin(self) -> None:
        """Begin with zeros, in the tensors of the first participant by name. Updates with other tensors are refused."""
        specs = next(state.specs for _, state in sorted(self._states.items()) if state.specs)
        self._weights = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}
        await asyncio.to_thread(self._store)

    async def _export(self) -> None:
        """Offer the final weights as the result: each script has them in its estimator, and writes its own model."""
        self._memory.model = self._memory.weights
        await asyncio.to_thread(self._save)
        self.done.set()


async def aggregate(aggregation: str, rounds: int, participants: int) -> None:
    """Run the aggregator of a job until its last round is done, and send the final report.

    ``aggregation``: the algorithm's name. ``participants``: scripts that take part in each round. Raises HalimedeError,
    perhaps in an ExceptionGroup.
    """
    worker = script_settings("cloud")
    job = JobSettings(trainers={}, aggregation=aggregation, rounds=rounds, min_clients=participants, run=run_of_job())
    broker = MqttSettings.from_url(worker.broker, credentials=worker.credentials)
    async with connect_to(broker, worker.node)(worker.client_id()) as bus, asyncio.TaskGroup() as group:
        reporter = StatusReporter(bus, worker, owner_kind=OWNER_KIND)
        reports = group.create_task(reporter.run(), name="reports")
        aggregator = ScriptAggregator(TrainingSettings(worker, job), bus, reporter, participants)
        stop = asyncio.Event()
        running = group.create_task(aggregator.run(lambda: None, stop), name="aggregator")
        await aggregator.done.wait()
        await aggregator.leave()
        stop.set()
        await running
        reports.cancel()
        await reporter.publish_final("completed", "", "")


class ScriptTrainer:
    """One participant: a thread has the bus, and the script's own thread has the estimator.

    ``estimator``: has ``train``, ``get_weights`` and ``set_weights``; ``evaluate`` is optional. ``train_data``,
    ``valid_data``: what ``train`` and ``evaluate`` get; ``valid_data`` None: nothing is evaluated. ``arguments``:
    further arguments of ``train``. Raises InvalidFieldError for an invalid environment.

    Attributes:
        metrics: numbers that the estimator returned in the last step that returned any.

    """

    def __init__(self, estimator: Any, train_data: Any, valid_data: Any, arguments: Mapping[str, Any]) -> None:
        self.metrics: dict[str, float] = {}
        self._estimator = estimator
        self._train_data = train_data
        self._valid_data = valid_data
        self._arguments = arguments
        self._worker = script_settings("edge")
        #: the next step: its name, further fields of its TrainingTask, and its result
        self._steps: queue.Queue[tuple[str, dict[str, Any], Future[TrainingResult]]] = queue.Queue(maxsize=1)
        self._ended: Future[None] = Future()
        #: the estimator's weights are a list, and no mapping
        self._as_list = True

    def run(self) -> dict[str, float]:
        """Take part until the job is done; return the metrics of the last step.

        Raises HalimedeError, perhaps in an ExceptionGroup.
        """
        thread = threading.Thread(target=self._in_thread, name="sedna_federated", daemon=True)
        thread.start()
        while not self._ended.done():
            try:
                step, values, result = self._steps.get(timeout=POLL_S)
            except queue.Empty:
                continue
            result.set_result(self._carry_out(step, values))
        self._ended.result()
        return self.metrics

    # --- in the script's thread -------------------------------------------------------------------------------------

    def _carry_out(self, step: str, values: Mapping[str, Any]) -> TrainingResult:
        """Return the result of a step, or the error of the estimator."""
        try:
            return self._describe() if step == "describe" else self._train(step, values["weights"], values["specs"])
        except HalimedeError as error:
            return TrainingResult(reason="TrainingFailed", message=shorten_middle(str(error), 4096))
        except Exception as error:
            log.exception("estimator failed")
            return TrainingResult(reason="TrainingFailed", message=shorten_middle(describe_exception(error), 4096))

    def _describe(self) -> TrainingResult:
        """Return the numbers of samples, and names, types and shapes of the weights."""
        samples, held_out = _count(self._train_data), _count(self._valid_data)
        return TrainingResult(samples=samples, held_out=held_out, shape=[1], specs=specs_of(self._weights()))

    def _train(self, operation: str, content: bytes, specs: list[TensorSpec]) -> TrainingResult:
        """Evaluate the job's weights, and train them if ``operation`` is ``train``.

        In the first round, whose weights are zeros, the estimator's own weights are trained and nothing is evaluated.
        """
        weights = decode(content, specs)
        result = TrainingResult(samples=_count(self._train_data), held_out=_count(self._valid_data), shape=[1])
        if any(tensor.any() for tensor in weights.values()):
            tensors = list(weights.values())
            self._estimator.set_weights(tensors if self._as_list else weights)
            result.evaluation = self._evaluate()
        if operation == "train":
            returned = self._estimator.train(self._train_data, valid_data=self._valid_data, **self._arguments)
            result.metrics = _numbers(returned)
            result.content = encode(difference(self._weights(), weights))
        self.metrics = result.evaluation or result.metrics or self.metrics
        return result

    def _evaluate(self) -> dict[str, float]:
        """Return the estimator's metrics of held-out samples; empty without such samples, or without ``evaluate``."""
        evaluate = getattr(self._estimator, "evaluate", None)
        return _numbers(evaluate(self._valid_data)) if evaluate and _count(self._valid_data) else {}

    def _weights(self) -> Weights:
        """Return the weights of the estimator by name; those of a list as ``tensor0``, ``tensor1``, ..."""
        weights = self._estimator.get_weights()
        self._as_list = not isinstance(weights, Mapping)
        pairs = weights.items() if isinstance(weights, Mapping) else enumerate(weights)
        return {name if isinstance(name, str) else f"tensor{name}": np.asarray(tensor) for name, tensor in pairs}

    # --- in the thread of the bus -----------------------------------------------------------------------------------

    def _in_thread(self) -> None:
        """Take part; record the end, or the error."""
        try:
            with first_error():
                asyncio.run(self._take_part())
        except BaseException as error:  # noqa: BLE001  # the script's thread raises it
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _take_part(self) -> None:
        """Take part in the job over the bus until it is done."""
        worker = self._worker
        job = JobSettings(trainers={worker.worker: worker.node}, run=run_of_job())
        settings = TrainingSettings(worker, job, Path())
        names = {"ns": worker.namespace, "job": worker.service}
        state = topics.TRAINER_STATE.at(node=worker.node, trainer=worker.worker, **names)
        announcement = Announcement(will=Packet(topic=state.text, payload=b"", qos=1, retain=True))
        broker = MqttSettings.from_url(worker.broker, credentials=worker.credentials)
        stop = asyncio.Event()
        async with connect_to(broker, worker.node)(worker.client_id(), announce=lambda: announcement) as bus:
            reporter = StatusReporter(bus, worker, owner_kind=OWNER_KIND)
            reports = asyncio.create_task(reporter.run(), name="reports")
            trainer = LeavingTrainer(settings, bus, reporter, step=self._step, leave=stop.set)
            async with promised_share(settings.job.cpu_share, reporter):
                await trainer.run(lambda: None, stop)
            reports.cancel()
            await reporter.publish_final("completed", "", "")

    async def _step(self, do: str, **more: Any) -> TrainingResult:
        """Let the script's thread run the step ``do``; return its result. ``more``: fields of its ``TrainingTask``.

        Waits until an earlier step, even a cancelled one, has ended.
        """
        result: Future[TrainingResult] = Future()
        while True:
            try:
                self._steps.put_nowait((do, more, result))
                break
            except queue.Full:
                await asyncio.sleep(POLL_S)
        return await asyncio.shield(asyncio.wrap_future(result))


class LeavingTrainer(TrainerWorker):
    """A ``TrainerWorker`` that ends with its job: a script goes on then. ``leave``: called once the job has ended."""

    def __init__(self, *arguments: Any, leave: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._leave = leave

    async def _on_round(self, delivery: Delivery[TrainingRound]) -> None:
        """Record the published round; leave if the job is done or has failed."""
        await super()._on_round(delivery)
        if delivery.body.job == self._settings.identity and delivery.body.state in {"done", "failed"}:
            self._leave()


def parse_positive(name: str, value: object) -> int:
    """Return a whole number from 1 on. Raises InvalidFieldError, which names ``name``, for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise InvalidFieldError(name, value, "give a whole number from 1")
    return number


def _count(data: Any) -> int:
    """Return the number of samples of a data source of Sedna, an array or a list."""
    return len(data) if data is not None and hasattr(data, "__len__") else 0


def _numbers(metrics: Any) -> dict[str, float]:
    """Return the numbers among what an estimator returned."""
    if not isinstance(metrics, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float | np.number) and np.isfinite(value)
    }
