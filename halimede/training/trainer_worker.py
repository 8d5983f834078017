"""A trainer: trains the round's weights on its node's samples, and offers the update to the aggregator.

All that it knows of the job is the aggregator's retained round, and all that it publishes is its own retained state.
One task waits for a round that invites this trainer, and takes part until its update is offered or another round is
published. So it can be killed at any instant: the next process reads the round, and either has the update in its
checkpoint, or makes the same update again. Samples never leave the node; each step of the user's trainer runs in a
child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.errors import BusError, shorten_middle
from halimede.hard_samples.store import last_stored
from halimede.learning_loop.gate import Evidence
from halimede.messages import TensorFile, TrainerState, TrainingProgress, TrainingRound
from halimede.models.errors import FetchError
from halimede.system.files import write_atomic
from halimede.training.checkpoint import Checkpoint
from halimede.training.child_messages import TrainingResult
from halimede.training.child_process import Step, TrainingProcess, most_bytes
from halimede.training.data import newest_ns
from halimede.training.error_feedback import ErrorFeedback, apply_change
from halimede.training.kept_data import is_kept
from halimede.training.metrics import training_metrics
from halimede.training.round_plan import is_same_round, is_superseded
from halimede.training.settings import TrainingSettings
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import decode, encode, size_limit
from halimede.training.weights import WeightsError, digest_of
from halimede.worker.status_reporter import StatusReporter

log = structlog.get_logger()

#: seconds until a trainer that cannot take part looks again whether it can
READ_AGAIN_S = 30.0
#: seconds until a trainer that fails may take part again
FAILS_AGAIN_S = 3600.0
#: seconds until a failed transfer is tried again
FETCH_AGAIN_S = 1.0
#: rounds in a row in which the user's trainer fails, after which it takes part in no further round
MOST_FAILURES = 3
#: reasons of a trainer that does not take part
OUTSIDE_HOURS, FAILS = "OutsideHours", "TrainerFails"
#: folder of the checkpoint, in the worker's own
FOLDER = "training"
#: the file of the model that is compared with the present one
CANDIDATE = "candidate.onnx"


class TrainerMemory(Struct, kw_only=True):
    """What a trainer stores of a job.

    Attributes:
        job: identity of the training.
        work: the last round that it took part in; None: none.
        update: the file of its update for that round; None: the round only evaluated.
        metrics: of its training in that round.
        evaluation: its metrics on held-out samples.
        residual: digest of the file with what compression has left out of all updates that count; empty: none.
        next_residual: digest of the file that becomes ``residual`` if the latest update counts; empty: it is known
            whether it counts, or nothing was left out.

    """

    job: str
    work: TrainingRound | None = None
    update: TensorFile | None = None
    metrics: dict[str, float] = {}
    evaluation: dict[str, float] = {}
    residual: str = ""
    next_residual: str = ""


class TrainerWorker:
    """One trainer of a job. Call ``run`` once. ``step`` runs the user's trainer; None: in a child process."""

    def __init__(
        self, settings: TrainingSettings, bus: Bus, reporter: StatusReporter, *, step: Step | None = None
    ) -> None:
        worker = settings.worker
        self._settings = settings
        self._bus = bus
        self._reporter = reporter
        self._process = TrainingProcess(settings)
        self._step = step or self._process.step
        self._names = {"ns": worker.namespace, "job": worker.service}
        self._checkpoint = Checkpoint(worker.state / FOLDER, TrainerMemory)
        self._memory = TrainerMemory(job=settings.identity)
        self._exchange = TensorExchange(bus, worker.namespace, worker.service, worker.worker)
        self._state = TrainerState(job=settings.identity, life=secrets.token_hex(4), samples=0)
        address = topics.TRAINER_STATE.at(node=worker.node, trainer=worker.worker, **self._names)
        # a state that changes seldom, and that the aggregator waits for
        self._publisher = RetainedPublisher(bus, address, lambda: self._state, least_s=0.0, lasts_s=0.0)
        self._round: TrainingRound | None = None
        #: file of the latest weights by its digest: the next round may need only their change
        self._recent_weights: dict[str, bytes] = {}
        #: digest of the model that was compared with the present one, and the result
        self._compared, self._comparison = "", TrainingResult()
        self._changed = asyncio.Event()
        self._failures = 0
        #: seconds of the last training, for metrics
        self._round_s = 0.0

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Take part in rounds until ``stop`` is set. ``ready``: called once it runs.

        Raises CheckpointError if its checkpoint cannot be read (once it runs, in an ExceptionGroup), BusError.
        """
        await asyncio.to_thread(self._restore)
        self._reporter.training = self._progress
        await self._exchange.start()
        await self._bus.subscribe(topics.TRAINING_ROUND.filter(**self._names), self._on_round)
        with contextlib.closing(self._process):
            await self._exchange.run_party(self._publisher, self._train(), ready, stop)

    def _restore(self) -> None:
        """Continue with the checkpoint of this job, if there is one. Raises CheckpointError. Blocks."""
        memory = self._checkpoint.load()
        if memory and memory.job == self._settings.identity:
            self._memory = memory
            if memory.update:
                self._exchange.offered[memory.update.digest] = self._checkpoint.folder / memory.update.digest

    def _progress(self) -> TrainingProgress:
        """Return the progress for the worker's report."""
        state = self._state
        return TrainingProgress(
            run=state.job,
            round=state.number,
            rounds=self._settings.job.rounds,
            reason=state.reason,
            metrics=state.metrics,
            bytes=self._exchange.moved_bytes,
            samples=state.samples + state.held_out,
            compared=self._compared,
            evidence=self._comparison.evidence,
            calibration=self._comparison.calibration,
        )

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        return training_metrics(self._progress(), self._exchange, self._round_s)

    async def _on_round(self, delivery: Delivery[TrainingRound]) -> None:
        """Record the published round of this job."""
        body = delivery.body
        if body.job == self._settings.identity:
            self._round = body
            self._changed.set()

    async def _train(self) -> None:
        """Describe the samples and take part in rounds. If a reason prevents that, try again later: samples change."""
        while True:
            await self._describe()
            await self._rounds()
            await asyncio.sleep(FAILS_AGAIN_S if self._state.reason == FAILS else READ_AGAIN_S)

    async def _describe(self) -> None:
        """Read the samples and publish their number and shape, or the reason why this trainer cannot take part."""
        if not self._settings.job.limits.hours.contains(datetime.now()):  # noqa: DTZ005 (hours of the node's clock)
            self._publish(reason=OUTSIDE_HOURS, message="training is not allowed at this hour")
            return
        description = await self._step("describe")
        self._set_samples(description)
        if description.reason:
            log.warning("samples not usable", reason=description.reason, message=description.message)
            self._publish(reason=description.reason, message=description.message)
        else:
            self._publish()

    async def _rounds(self) -> None:
        """Take part in rounds, and compare their model if the job wants that, until a reason prevents it."""
        while not self._state.reason or self._state.number:
            self._changed.clear()
            body = self._round
            if body is not None:
                await asyncio.to_thread(self._advance_residual, body)
                if self._must_take_part(body):
                    await self._work_until_superseded(body, self._take_part(body))
                    continue
                if self._settings.job.compares and body.model and body.model.digest != self._compared:
                    await self._work_until_superseded(body, self._compare(body, body.model))
                    continue
            await self._changed.wait()

    def _must_take_part(self, body: TrainingRound) -> bool:
        """Whether the round is open, and this trainer is invited and has not published its state for it."""
        name = self._settings.worker.worker
        is_published = (self._state.epoch, self._state.number) == (body.epoch, body.number)
        return body.state == "open" and name in body.invited and body.weights is not None and not is_published

    async def _work_until_superseded(self, body: TrainingRound, work: Coroutine[Any, Any, None]) -> None:
        """Do the work for a round; cancel it once another round is published. Raises what the work raises."""
        task = asyncio.create_task(work, name=f"round {body.number}")
        try:
            while not task.done():
                self._changed.clear()
                change = asyncio.create_task(self._changed.wait())
                await asyncio.wait({task, change}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if is_superseded(body, self._round):
                    return
            task.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _take_part(self, body: TrainingRound) -> None:
        """Publish an update for a round, the stored one if it is for this round, or a new one; or why there is none."""
        work = self._memory.work
        if work is not None and is_same_round(work, body):
            self._publish(body, self._memory.update)
            return
        if not self._settings.job.limits.hours.contains(datetime.now()):  # noqa: DTZ005 (hours of the node's clock)
            self._publish(reason=OUTSIDE_HOURS, message="training is not allowed at this hour")
            return
        assert body.weights is not None  # noqa: S101  # ``_must_take_part`` checks it
        samples = await asyncio.to_thread(self._present_samples)
        weights = await self._weights(body, body.weights)
        started = asyncio.get_running_loop().time()
        result = await self._step(
            "evaluate" if body.only_evaluate else "train",
            weights=weights,
            specs=body.specs,
            seed=_seed(body.seed, self._settings.worker.worker),
            round_parameters=body.parameters,
            **samples,
        )
        if not result.reason:
            self._set_samples(result)
            result = await asyncio.to_thread(self._store_update, body, result)
        if result.reason:
            self._report_failure(body, result)
            return
        self._failures = 0
        self._round_s = asyncio.get_running_loop().time() - started
        log.info("round trained", number=body.number, seconds=round(self._round_s, 3), metrics=result.metrics)
        self._publish(body, self._memory.update)

    def _present_samples(self) -> dict[str, Any]:
        """Return the fields of a TrainingTask that let a round train only on samples that are present now. Blocks."""
        data, reference = self._settings.data, self._settings.reference
        if data == Path():
            return {}  # a script has its samples itself
        if is_kept(data):
            return {"last_kept": last_stored(data), "until_ns": newest_ns(Path(reference)) if reference else None}
        return {"until_ns": newest_ns(data)}

    async def _compare(self, body: TrainingRound, model: TensorFile) -> None:
        """Compare the model of a job that is done with the present one, and report the evidence or the failure.

        The model is written to the file CANDIDATE.
        """
        content = await self._fetch(body, model, most_bytes(body.specs))
        path = self._settings.worker.state / CANDIDATE
        try:
            await asyncio.to_thread(write_atomic, path, content)
            result = await self._step("compare", candidate=str(path))
        except OSError as error:
            result = TrainingResult(reason="DiskFull", message=f"{path} cannot be written: {error.strerror}")
        if result.reason:
            none = Evidence(error=shorten_middle(f"it was not compared: {result.reason}: {result.message}", 1024))
            result.evidence = msgspec.json.encode(none).decode()
        log.info("model compared", digest=model.digest[:12], reason=result.reason, message=result.message)
        self._comparison, self._compared = result, model.digest
        self._reporter.touch()

    async def _weights(self, body: TrainingRound, file: TensorFile) -> bytes:
        """Return the file of a round's weights: a recent one, a recent one after the change, or a fetched one."""
        weights = self._recent_weights.get(file.digest) or await self._after_change(body, file)
        if weights is None:
            weights = await self._fetch(body, file, size_limit(body.specs))
        self._recent_weights = {file.digest: weights} if body.compression.is_lossy else {}
        return weights

    async def _after_change(self, body: TrainingRound, file: TensorFile) -> bytes | None:
        """Return the file of weights that the round's change makes of recent weights; None if that is not possible."""
        base = self._recent_weights.get(body.base)
        if body.change is None or base is None:
            return None
        try:
            content = await self._exchange.fetch(body.source, body.change, size_limit(body.specs))
            return await asyncio.to_thread(apply_change, base, content, body.specs, file.digest)
        except (FetchError, BusError, WeightsError) as error:
            log.warning("change of weights not used", number=body.number, error=str(error))
            return None

    async def _fetch(self, body: TrainingRound, file: TensorFile, most: int) -> bytes:
        """Return a file of the aggregator. A failed transfer is repeated until another round cancels this."""
        while True:
            try:
                return await self._exchange.fetch(body.source, file, most)
            except (FetchError, BusError, WeightsError) as error:
                log.info("file of the round not fetched", number=body.number, error=str(error))
            await asyncio.sleep(FETCH_AGAIN_S)

    def _report_failure(self, body: TrainingRound, result: TrainingResult) -> None:
        """Publish a failure: for this round; after some in a row, or because of the samples, for all rounds."""
        self._failures += 1
        log.warning("round not trained", number=body.number, reason=result.reason, message=result.message)
        if result.reason.startswith("Dataset"):
            self._publish(reason=result.reason, message=result.message)
        elif self._failures >= MOST_FAILURES:
            text = f"{self._failures} rounds in a row: {result.reason}: {result.message}"
            self._failures = 0
            self._publish(reason=FAILS, message=text)
        else:
            self._publish(body, None, result.reason, result.message)

    def _store_update(self, body: TrainingRound, result: TrainingResult) -> TrainingResult:
        """Store and offer the update in a result, so that a later process has the same update. Blocks.

        Returns the result, or a failed one if the update cannot be stored.
        """
        memory = TrainerMemory(
            job=body.job,
            work=body,
            metrics=result.metrics,
            evaluation=result.evaluation,
            residual=self._memory.residual,
            next_residual=self._memory.next_residual if body.only_evaluate else "",
        )
        try:
            if not body.only_evaluate:
                self._compress(body, result.content, memory)
            files = {memory.residual, memory.next_residual, memory.update.digest if memory.update else ""} - {""}
            self._checkpoint.save(memory, files)
        except WeightsError as error:
            return TrainingResult(reason=f"Weights{error.reason}", message=str(error))
        except OSError as error:
            return TrainingResult(reason="DiskFull", message=f"the update cannot be stored: {error}")
        self._memory = memory
        self._exchange.offered.clear()
        if memory.update:
            self._exchange.offered[memory.update.digest] = self._checkpoint.folder / memory.update.digest
        return result

    def _compress(self, body: TrainingRound, content: bytes, memory: TrainerMemory) -> None:
        """Store the compressed form of an update, and its residual; record both in ``memory``.

        Raises WeightsError, CheckpointError, OSError.
        """
        feedback = ErrorFeedback(body.compression)
        if memory.residual:
            feedback.residual = decode(self._checkpoint.read(memory.residual), body.specs)
        update, residual = feedback.compress(decode(content, body.specs))
        memory.update = TensorFile(digest=self._checkpoint.add(update), size=len(update))
        if body.compression.is_lossy:
            memory.next_residual = self._checkpoint.add(encode(residual))

    def _advance_residual(self, body: TrainingRound) -> None:
        """Once a later round shows whether the latest update has counted, store the residual with or without it.

        Blocks.
        """
        memory, work = self._memory, self._memory.work
        if work is None or not memory.next_residual or body.number <= work.number:
            return
        counted = body.number == work.number + 1 and self._settings.worker.worker in body.counted
        residual = memory.next_residual if counted else memory.residual
        memory = msgspec.structs.replace(memory, residual=residual, next_residual="")
        files = {memory.residual, memory.update.digest if memory.update else ""} - {""}
        try:
            self._checkpoint.save(memory, files)
        except OSError as error:
            log.warning("residual not stored", error=str(error))
        self._memory = memory

    def _set_samples(self, description: TrainingResult) -> None:
        """Put the number and the shape of samples into the state, which is published later."""
        self._state = msgspec.structs.replace(
            self._state,
            samples=description.samples,
            held_out=description.held_out,
            shape=description.shape or self._state.shape,
            specs=description.specs or self._state.specs,
        )

    def _publish(
        self, body: TrainingRound | None = None, update: TensorFile | None = None, reason: str = "", message: str = ""
    ) -> None:
        """Publish and report the state: for a round, or (None) for all, with the reason why it cannot take part."""
        done = body is not None and not reason
        self._state = msgspec.structs.replace(
            self._state,
            epoch=body.epoch if body else 0,
            number=body.number if body else 0,
            update=update,
            metrics=self._memory.metrics if done else {},
            evaluation=self._memory.evaluation if done else {},
            reason=reason,
            message=message,
        )
        self._publisher.touch()
        self._reporter.set("running", reason, message or (f"round {body.number}" if body else "waiting for a round"))


def _seed(seed: int, trainer: str) -> int:
    """Return the seed of one trainer in a round with this seed: 32 bits."""
    return int(digest_of(f"{seed}/{trainer}".encode())[:8], 16)
