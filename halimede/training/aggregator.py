"""The aggregator of a training job: opens rounds, fetches the trainers' updates, and makes the next weights of them.

One task does the rounds, one after the other; a ``Round`` has all that it knows of the present round. A round waits
until ``minClients`` trainers can take part; the first round, and a round after a shortage, waits ``SETTLE_S`` longer
for the other trainers. The round is open until each invited trainer has given an update or a reason, at most
``roundDeadlineS``: each update has a task that fetches it, and these tasks end with the round. Then the updates become
the next weights; with too few updates, the same round is opened again under the next epoch. The target or the number of
rounds ends the job, and its model is offered until the worker stops.

The aggregator publishes one retained state, the round, and waits for changes of the trainers' retained states; trainers
wait for a change of the round. Each state has all that counts, so lost and repeated messages change nothing, and a
trainer that has ended costs a round no more than its deadline.

A checkpoint after each round, and one when a round opens, let the next process continue: with a higher epoch, at the
same round, with the same trainers and the same seed. So the result is that of a job which was not interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

import msgspec
import structlog
from msgspec import Struct
from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.errors import BusError
from halimede.messages import TensorFile, TensorSpec, TrainerState, TrainingProgress, TrainingRound
from halimede.models.errors import FetchError
from halimede.training import round_plan
from halimede.training.aggregation import create
from halimede.training.checkpoint import Checkpoint
from halimede.training.child_process import run_step
from halimede.training.earlier_weights import FOLDER as TRAINED
from halimede.training.earlier_weights import EarlierWeights, first_weights
from halimede.training.error_feedback import ErrorFeedback
from halimede.training.metrics import training_metrics
from halimede.training.round_plan import AcceptedUpdate, Round, UpdateVerdict
from halimede.training.settings import TrainingSettings
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import decode, decode_finite, encode, size_limit
from halimede.training.update_checks import Update, clip
from halimede.training.weights import Weights, WeightsError, check_finite, specs_of
from halimede.worker.errors import WorkerError
from halimede.worker.status_reporter import StatusReporter

log = structlog.get_logger()

#: folder of the checkpoint, in the worker's own
FOLDER = "training"
#: seconds that a job waits for further trainers once there are enough, before it begins or continues
SETTLE_S = 5.0
#: seconds until an update that could not be fetched is fetched again
FETCH_AGAIN_S = 1.0
#: seconds between two publications of an unchanged round
HEARTBEAT_S = 10.0
#: most different reasons that are counted
MOST_REASONS = 64
#: reason of a job that waits for trainers
TOO_FEW = "TooFewTrainers"
#: an update whose norm was reduced, among the counted reasons
CLIPPED = "Clipped"
#: reasons of a job that is done
TARGET_REACHED, ROUNDS_DONE = "TargetReached", "RoundsDone"


class AggregatorMemory(Struct, kw_only=True):
    """A job as its aggregator stores it and continues it. Files of tensors are named by their digest; empty: none.

    Attributes:
        job: identity of the training: the life of its resource, and its run.
        epoch: counts the aggregator's processes and the repeated rounds.
        number: the round that is open or comes next.
        invited: the trainers of the open round; empty: none is open.
        counted: the trainers whose updates made ``weights``.
        weights: file of the present weights.
        specs: names, types and shapes of the weights.
        change: file of the compressed change that made them; empty if the job has no compression.
        base: digest of the weights before that change.
        residual: file of what the change has left out.
        state: file of what the aggregation keeps from round to round.
        state_specs: its tensors.
        metrics: means of the trainers' metrics in the last round that was evaluated.
        evaluated: the number of that round; 0: none was evaluated.
        dropped: counts of refused and of clipped updates, and of repeated rounds, by reason.
        reason: why the job is done; empty: it is not done.
        model: file of the final model (ONNX).
        bytes: bytes of tensors that the job's processes have sent and received.

    """

    job: str
    epoch: int = 0
    number: int = 1
    invited: list[str] = []
    counted: list[str] = []
    weights: str = ""
    specs: list[TensorSpec] = []
    change: str = ""
    base: str = ""
    residual: str = ""
    state: str = ""
    state_specs: list[TensorSpec] = []
    metrics: dict[str, float] = {}
    evaluated: int = 0
    dropped: dict[str, int] = {}
    reason: str = ""
    model: str = ""
    bytes: int = 0

    @property
    def offered(self) -> set[str]:
        """The digests of files that trainers may fetch."""
        return {self.weights, self.change, self.model} - {""}

    @property
    def files(self) -> set[str]:
        """The digests of all its files."""
        return self.offered | {self.state, self.residual} - {""}


class Aggregator:
    """The aggregator of one job. Raises InvalidFieldError for an unknown aggregation. Call ``run`` once."""

    def __init__(self, settings: TrainingSettings, bus: Bus, reporter: StatusReporter) -> None:
        worker, job = settings.worker, settings.job
        self._settings = settings
        self._bus = bus
        self._reporter = reporter
        self._names = {"ns": worker.namespace, "job": worker.service}
        self._aggregation = create(job.aggregation, job.aggregation_parameters)
        self._checkpoint = Checkpoint(worker.state / FOLDER, AggregatorMemory)
        self._memory = AggregatorMemory(job=settings.identity)
        self._earlier = EarlierWeights(worker.state / TRAINED)
        #: the present weights; empty before the first ones
        self._weights: Weights = {}
        #: bytes of each offered file, by digest
        self._sizes: dict[str, int] = {}
        self._exchange = TensorExchange(bus, worker.namespace, worker.service, worker.worker)
        address = topics.TRAINING_ROUND.at(**self._names)
        self._publisher = RetainedPublisher(
            bus, address, self._body, same=_is_same_but_for_time, heartbeat_s=HEARTBEAT_S
        )
        #: the latest state of each trainer
        self._states: dict[str, TrainerState] = {}
        self._round = Round(settings.identity)
        #: set when a state has changed, or an invited trainer was accepted or refused
        self._changed = asyncio.Event()
        #: bytes of tensors that earlier processes have sent and received
        self._bytes_before = 0
        #: seconds of the last round, and updates that were received, for metrics
        self._round_s = 0.0
        self._received = 0

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run the job until ``stop`` is set; after its last round, serve its model. ``ready``: called once it runs.

        Raises CheckpointError if its checkpoint cannot be read, OSError if it cannot be written, BusError, and in an
        ExceptionGroup WorkerError if the user's trainer fails or the weights diverge.
        """
        await asyncio.to_thread(self._restore)
        await self._exchange.start()
        self._reporter.training = self._progress
        await self._bus.subscribe(topics.TRAINER_STATE.filter(**self._names), self._on_state, cleared=self._on_cleared)
        await self._exchange.run_party(self._publisher, self._rounds(), ready, stop)

    async def _rounds(self) -> None:
        """Do rounds until the target or the number of rounds is reached, then export the model. Raises WorkerError."""
        memory = self._memory
        while not memory.reason:
            invited = memory.invited or await self._invite()
            if not self._weights:
                await self._begin()
            began = asyncio.get_running_loop().time()
            await self._open(invited)
            await self._collect()
            await self._conclude()
            self._round_s = asyncio.get_running_loop().time() - began
        if not memory.model:
            await self._export()
        self._round = Round(memory.job, phase="done")
        self._publisher.touch()
        self._reporter.set("running", memory.reason, self._summary())
        log.info("training done", reason=memory.reason, rounds=memory.evaluated, metrics=memory.metrics)

    # --- one round ------------------------------------------------------------------------------------------------

    async def _invite(self) -> list[str]:
        """Wait for enough trainers, without a deadline; return the names of those of the next round.

        Publishes and reports while there are too few.
        """
        job, memory, loop = self._settings.job, self._memory, asyncio.get_running_loop()
        settled = 0.0 if self._round.number else math.inf
        while True:
            self._changed.clear()
            shape = round_plan.sample_shape(self._states, memory.job)
            candidates = round_plan.candidates(self._states, memory.job, shape)
            if len(candidates) < job.min_clients:
                settled = math.inf
                present = f"{len(candidates)} of {len(job.trainers)} trainers can take part"
                self._set_shortage(f"{present}: {job.min_clients} must")
            elif len(candidates) == len(job.trainers) or loop.time() >= settled:
                self._set_shortage("")
                seed = round_plan.round_seed(job.seed, memory.number)
                return list(round_plan.invite(candidates, job.clients_per_round, seed))
            else:
                settled = min(settled, loop.time() + SETTLE_S)
            await self._wait(settled)

    async def _begin(self) -> None:
        """Make and store the first weights, for the samples that most trainers have. Raises WorkerError."""
        shape = round_plan.sample_shape(self._states, self._memory.job)
        result = await run_step(self._settings, "initial", shape=shape)
        if result.reason:
            raise WorkerError(result.reason, result.message)
        self._weights = await asyncio.to_thread(first_weights, self._settings.job, self._earlier, result)
        await asyncio.to_thread(self._store)

    async def _open(self, invited: list[str]) -> None:
        """Open a round for these trainers. It is stored first, so that the next process repeats the same round."""
        memory, job = self._memory, self._settings.job
        if memory.invited != invited:
            memory.invited = invited
            await asyncio.to_thread(self._save)
        self._round = Round(
            memory.job,
            memory.epoch,
            memory.number,
            tuple(invited),
            asyncio.get_running_loop().time() + job.round_deadline_s,
            size_limit(memory.specs),
            only_evaluate=memory.number > job.rounds,
            counted=frozenset(memory.counted),
            phase="open",
            # a state that names no round is judged in each round
            judged={name: identity for name, identity in self._round.judged.items() if identity[1]},
        )
        self._reporter.set("running", "", self._summary())
        await self._publisher.publish()  # all trainers wait for it

    async def _collect(self) -> None:
        """Receive updates until all invited trainers are accepted or refused, or the round's deadline."""
        fetching: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while not self._round.is_over(asyncio.get_running_loop().time()):
                self._changed.clear()
                for name, state in self._round.unjudged_states(self._states):
                    verdict = self._round.judge(name, state)
                    if verdict is UpdateVerdict.FETCH:
                        if name in fetching:
                            fetching[name].cancel()
                        fetching[name] = group.create_task(self._fetch(name, state), name=f"update of {name}")
                    else:
                        self._apply_verdict(name, state, verdict)
                await self._wait(self._round.until)
            for task in fetching.values():
                task.cancel()

    def _apply_verdict(self, name: str, state: TrainerState, verdict: UpdateVerdict) -> None:
        """Act on a state that has no update to fetch."""
        if verdict is UpdateVerdict.EVALUATED:
            self._accept(name, AcceptedUpdate(state, {}))
        elif verdict is UpdateVerdict.DECLINED:
            self._refuse(name, state.reason, state.message)
        elif verdict is UpdateVerdict.TOO_LARGE:
            self._refuse(name, verdict)
        elif verdict is not UpdateVerdict.NOTHING:
            self._count(verdict)
            log.warning("update refused", trainer=name, reason=verdict, number=state.number)

    async def _fetch(self, name: str, state: TrainerState) -> None:
        """Fetch and check a trainer's update. A failed transfer is repeated until the end of the round cancels this."""
        assert state.update is not None  # noqa: S101  # of the verdict
        while True:
            try:
                content = await self._exchange.fetch(name, state.update, self._round.most_bytes)
                delta = await asyncio.to_thread(decode_finite, content, self._memory.specs)
            except WeightsError as error:
                self._refuse(name, error.reason, str(error))
                return
            except (FetchError, BusError) as error:
                log.info("update not fetched", trainer=name, number=self._round.number, error=str(error))
            else:
                self._accept(name, AcceptedUpdate(state, delta))
                return
            await asyncio.sleep(FETCH_AGAIN_S)

    def _accept(self, name: str, update: AcceptedUpdate) -> None:
        """Let a trainer's update count in the round."""
        self._round.accepted[name] = update
        self._received += 1
        self._touch()

    def _refuse(self, name: str, reason: str, message: str = "") -> None:
        """Record why a trainer's update does not count in the round."""
        self._round.refused[name] = reason
        self._count(reason)
        log.warning("update refused", trainer=name, reason=reason, message=message, number=self._round.number)
        self._touch()

    async def _conclude(self) -> None:
        """Make the next weights of the round's updates, or end the job; with too few updates, the round is repeated.

        Raises WorkerError if the weights diverge.
        """
        memory, job, ended = self._memory, self._settings.job, self._round
        memory.invited, ended.phase = [], "waiting"
        if not ended.has_enough(job.min_clients):
            memory.epoch += 1
            self._count("RoundRepeated")
            log.warning("round repeated", number=ended.number, received=list(ended.accepted), refused=ended.refused)
            await asyncio.to_thread(self._save)
            return
        states = {name: update.state for name, update in sorted(ended.accepted.items())}
        if metrics := round_plan.mean_metrics(states):
            memory.metrics, memory.evaluated = metrics, ended.number
        log.info("round done", number=ended.number, received=len(states), metrics=metrics)
        if round_plan.is_target_reached(job.target, metrics):
            memory.reason = TARGET_REACHED  # the weights that were evaluated are those of the model
        elif ended.only_evaluate:
            memory.reason = ROUNDS_DONE
        else:
            await asyncio.to_thread(self._aggregate, states)
            memory.counted = list(states)
            memory.number += 1
        await asyncio.to_thread(self._store)

    def _aggregate(self, states: Mapping[str, TrainerState]) -> None:
        """Make the next weights of the accepted updates. Raises WorkerError if they are not finite. Blocks."""
        samples = round_plan.trainer_weights({name: state.samples for name, state in states.items()})
        updates, names = clip([Update(name, samples[name], self._round.accepted[name].delta) for name in samples])
        for _ in names:
            self._count(CLIPPED)
        weights = self._aggregation.aggregate(self._weights, updates)
        try:
            check_finite(weights)
            self._weights = self._compress(weights) if self._settings.job.compression.is_lossy else weights
        except WeightsError as error:
            text = f"after round {self._memory.number} {error}: use another aggregation, or a lower rate"
            raise WorkerError("Diverged", text) from error

    def _compress(self, aggregated: Weights) -> Weights:
        """Store a compressed change towards the aggregated weights; return the weights that trainers make with it.

        Raises WeightsError if they are not finite.
        """
        memory, feedback = self._memory, ErrorFeedback(self._settings.job.compression)
        if memory.residual:
            feedback.residual = decode(self._checkpoint.read(memory.residual), memory.specs)
        weights, change = feedback.advance(self._weights, aggregated)
        memory.base, memory.change = memory.weights, self._add(change)
        memory.residual = self._checkpoint.add(encode(feedback.residual))
        return weights

    async def _export(self) -> None:
        """Make the ONNX model of the final weights, and store both. Raises WorkerError."""
        memory = self._memory
        content = await asyncio.to_thread(encode, self._weights)
        result = await run_step(self._settings, "export", weights=content, specs=memory.specs)
        if result.reason:
            raise WorkerError("ExportFailed", f"{result.reason}: {result.message}")
        memory.model = await asyncio.to_thread(self._add, result.content)
        await asyncio.to_thread(self._earlier.keep, memory.model, content)
        await asyncio.to_thread(self._save)

    # --- states -----------------------------------------------------------------------------------------------------

    async def _on_state(self, delivery: Delivery[TrainerState]) -> None:
        """Record the state of a trainer, if it is one of the job's trainers on its own node; otherwise count it."""
        name = delivery.names["trainer"]
        if self._settings.job.trainers.get(name) != delivery.names["node"]:
            self._count(UpdateVerdict.NOT_INVITED)
            log.warning("trainer unknown", trainer=name, node=delivery.names["node"])
            return
        self._states[name] = delivery.body
        self._changed.set()

    async def _on_cleared(self, names: Mapping[str, str]) -> None:
        """Forget the state of a trainer that has ended. Its update counts if it was fetched."""
        if self._settings.job.trainers.get(names["trainer"]) == names["node"]:
            self._states.pop(names["trainer"], None)
            self._changed.set()

    async def _wait(self, until: float) -> None:
        """Wait for a change, at most until a time of the loop's clock, and at most ``HEARTBEAT_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + HEARTBEAT_S)):
                await self._changed.wait()

    def _touch(self) -> None:
        """Wake the task of the rounds, and publish and report the round's new state."""
        self._changed.set()
        self._publisher.touch()
        self._reporter.set("running", "", self._summary())

    def _set_shortage(self, text: str) -> None:
        """Publish and report why there are too few trainers; empty: there are enough."""
        if text != self._round.shortage:
            self._round.shortage = text
            self._publisher.touch()
            self._reporter.set("running", TOO_FEW if text else "", text)

    def _count(self, reason: str) -> None:
        """Count a refused or clipped update, or a repeated round, by its reason; new reasons up to MOST_REASONS."""
        if reason in self._memory.dropped or len(self._memory.dropped) < MOST_REASONS:
            self._memory.dropped[reason] = self._memory.dropped.get(reason, 0) + 1

    def _summary(self) -> str:
        """Return the progress in one line, for users."""
        memory, invited = self._memory, self._round.invited
        shown = ", ".join(f"{key} {value:.4g}" for key, value in memory.metrics.items())
        rounds = f"round {min(memory.number, self._settings.job.rounds)} of {self._settings.job.rounds}"
        trainers = f", {len(self._round.accepted)} of {len(invited)} trainers" if invited else ""
        return f"{rounds}{trainers}" + (f"; {shown} (round {memory.evaluated})" if shown else "")

    @property
    def _reason(self) -> str:
        """Why the job has ended, or cannot go on."""
        return self._memory.reason or (TOO_FEW if self._round.shortage else "")

    def _progress(self) -> TrainingProgress:
        """Return the progress for the worker's report."""
        memory, rounds = self._memory, self._settings.job.rounds
        return TrainingProgress(
            run=memory.job,
            state=self._round.phase,
            round=min(memory.number, rounds),
            rounds=rounds,
            reason=self._reason,
            metrics=memory.metrics,
            evaluated=memory.evaluated,
            dropped=dict(memory.dropped),
            bytes=self._bytes,
            model=self._file(memory.model),
        )

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        updates = {"Received": self._received, **self._memory.dropped}
        return training_metrics(self._progress(), self._exchange, self._round_s, updates)

    @property
    def _bytes(self) -> int:
        """The bytes of tensors that this process and earlier ones have sent and received."""
        return self._bytes_before + self._exchange.moved_bytes

    def _body(self) -> TrainingRound:
        """Return the round as it is published."""
        memory, present, job = self._memory, self._round, self._settings.job
        remaining_s = present.until - asyncio.get_running_loop().time() if present.phase == "open" else 0.0
        return TrainingRound(
            job=memory.job,
            epoch=memory.epoch,
            number=memory.number,
            state=present.phase,
            reason=self._reason,
            message=present.shortage,
            source=self._settings.worker.worker,
            weights=self._file(memory.weights),
            change=self._file(memory.change),
            base=memory.base,
            specs=memory.specs,
            invited=list(memory.invited),
            counted=memory.counted,
            received=sorted(present.accepted),
            refused=dict(present.refused),
            only_evaluate=memory.number > job.rounds,
            remaining_ms=max(0.0, remaining_s) * 1000,
            seed=round_plan.round_seed(job.seed, memory.number),
            parameters=self._aggregation.trainer_parameters(),
            compression=job.compression,
            metrics=memory.metrics,
            evaluated=memory.evaluated,
            dropped=dict(memory.dropped),
            model=self._file(memory.model),
        )

    def _file(self, digest: str) -> TensorFile | None:
        """Return digest and size of an offered file; None for an empty digest."""
        return TensorFile(digest=digest, size=self._sizes[digest]) if digest else None

    # --- the checkpoint: blocking ---------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Continue with the checkpoint of this job, if there is one, under the next epoch.

        Raises CheckpointError, OSError.
        """
        memory = self._checkpoint.load()
        if memory and memory.job == self._memory.job:
            self._memory = memory
            if memory.reason == ROUNDS_DONE and memory.number <= self._settings.job.rounds:
                memory.reason, memory.model = "", ""  # an edit asks for more rounds
            if memory.weights:
                self._weights = decode(self._checkpoint.read(memory.weights), memory.specs)
            if memory.state:
                self._aggregation.restore(decode(self._checkpoint.read(memory.state), memory.state_specs))
            self._bytes_before = memory.bytes
            self._round.phase = "done" if memory.model else "waiting"
            self._offer()
        self._memory.epoch += 1
        self._save()

    def _store(self) -> None:
        """Store the present weights, and what the aggregation keeps. Raises OSError."""
        memory, state = self._memory, self._aggregation.state()
        memory.specs = specs_of(self._weights)
        memory.weights = self._add(encode(self._weights))
        memory.state_specs = specs_of(state) if state else []
        memory.state = self._add(encode(state)) if state else ""
        self._save()

    def _add(self, content: bytes) -> str:
        """Store a file to offer; return its digest. Raises OSError."""
        digest = self._checkpoint.add(content)
        self._sizes[digest] = len(content)
        return digest

    def _save(self) -> None:
        """Store the job, and offer its files. Raises OSError."""
        self._memory.bytes = self._bytes
        self._checkpoint.save(self._memory, self._memory.files)
        self._offer()

    def _offer(self) -> None:
        """Offer the weights, their change and the model to the trainers. Raises OSError if a file is missing."""
        offered = {digest: self._checkpoint.folder / digest for digest in self._memory.offered}
        self._sizes = {digest: path.stat().st_size for digest, path in offered.items()}
        self._exchange.offered = offered


def _is_same_but_for_time(one: TrainingRound, other: TrainingRound) -> bool:
    """Whether two rounds differ only in the time that remains."""
    return msgspec.structs.replace(one, remaining_ms=0.0) == msgspec.structs.replace(other, remaining_ms=0.0)
