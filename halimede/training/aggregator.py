"""The aggregator of a training job: opens rounds, fetches the trainers' updates, and makes the next weights of them.

It publishes one retained state, the round, and reads the retained states of the trainers; both hold all that counts, so
lost and repeated messages change nothing. A checkpoint after each round, and one when a round opens, let the next
process continue: with a higher epoch, at the same round, with the same trainers and the same seed. So the result is
that of a job which nobody interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

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
from halimede.training.round_plan import RoundPlan, UpdateVerdict
from halimede.training.settings import TrainingSettings
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import decode, decode_finite, encode, size_limit
from halimede.training.update_checks import Update, clip
from halimede.training.weights import Weights, WeightsError, check_finite, specs_of
from halimede.worker.errors import WorkerError
from halimede.worker.status_reporter import StatusReporter

log = structlog.get_logger()

FOLDER = "training"
#: seconds that a job waits for further trainers once there are enough, before it begins or continues; until an update
#: that could not be fetched is fetched again; between two publications of an unchanged round
SETTLE_S, FETCH_AGAIN_S, HEARTBEAT_S = 5.0, 1.0, 10.0
MOST_REASONS = 64
TOO_FEW = "TooFewTrainers"
CLIPPED = "Clipped"
TARGET_REACHED, ROUNDS_DONE = "TargetReached", "RoundsDone"


class AggregatorMemory(Struct, kw_only=True):
    """A job as its aggregator continues it. ``weights``, ``state``, ``model``: digests of files; empty: none.

    ``number`` is the round to do next, or that is open: then ``invited`` is not empty. If weights are compressed,
    ``change`` made them of those with the digest ``base``, and ``residual`` is what it left out.
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
    #: of tensors that its processes have sent and received
    bytes: int = 0

    @property
    def offered(self) -> set[str]:
        """The digests of files for the trainers. What the aggregator keeps for itself is of no use to them."""
        return {self.weights, self.change, self.model} - {""}

    @property
    def files(self) -> set[str]:
        """The digests of all its files."""
        return self.offered | {self.state, self.residual} - {""}


@dataclass(frozen=True, slots=True)
class Accepted:
    """A trainer's part in a round: its state, and its update if weights are trained."""

    state: TrainerState
    delta: Weights


class Aggregator:
    """The aggregator of one job. ``run`` until stopped."""

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
        self._weights: Weights = {}
        self._sizes: dict[str, int] = {}
        self._exchange = TensorExchange(bus, worker.namespace, worker.service, worker.worker)
        address = topics.TRAINING_ROUND.at(**self._names)
        self._publisher = RetainedPublisher(
            bus, address, self._body, same=_is_same_but_for_time, heartbeat_s=HEARTBEAT_S
        )
        #: the latest state of each trainer, and what it was when it was judged
        self._states: dict[str, TrainerState] = {}
        self._judged: dict[str, tuple[int, int, str, str]] = {}
        self._plan: RoundPlan | None = None
        self._accepted: dict[str, Accepted] = {}
        self._changed = asyncio.Event()
        self._waiting = ""
        self._bytes_before = 0
        #: seconds of the last round, and updates that were received, for metrics
        self._round_s = 0.0
        self._received = 0

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run the job until ``stop`` is set; after its last round, serve its model. Raises CheckpointError."""
        await asyncio.to_thread(self._restore)
        await self._exchange.start()
        self._reporter.training = self._progress
        states = topics.TRAINER_STATE.filter(**self._names)
        await self._bus.subscribe(states, self._published, cleared=self._cleared)
        await self._exchange.run_party(self._publisher, self._rounds(), ready, stop)

    async def _rounds(self) -> None:
        """Do rounds until the target or their number is reached, then export the model."""
        memory = self._memory
        while not memory.reason:
            invited = memory.invited or await self._invite()
            if not self._weights:
                await self._begin()
            began = asyncio.get_running_loop().time()
            plan = await self._open(invited)
            await self._collect(plan)
            await self._conclude(plan)
            self._round_s = asyncio.get_running_loop().time() - began
        if not memory.model:
            await self._export()
        self._plan = None
        self._publisher.touch()
        self._reporter.set("running", memory.reason, self._summary())
        log.info("training done", reason=memory.reason, rounds=memory.evaluated, metrics=memory.metrics)

    # --- one round ------------------------------------------------------------------------------------------------

    async def _invite(self) -> list[str]:
        """Wait for enough trainers; return those of the next round. Who is gone costs a job that runs no time."""
        job, memory, loop = self._settings.job, self._memory, asyncio.get_running_loop()
        settled = math.inf if self._plan is None else 0.0
        while True:
            self._changed.clear()
            candidates = round_plan.candidates(
                self._states, memory.job, round_plan.sample_shape(self._states, memory.job)
            )
            if len(candidates) < job.min_clients:
                settled = math.inf
                self._wait_for(
                    f"{len(candidates)} of {len(job.trainers)} trainers can take part: {job.min_clients} must"
                )
            elif len(candidates) == len(job.trainers) or loop.time() >= settled:
                self._wait_for("")
                seed = round_plan.round_seed(job.seed, memory.number)
                return list(round_plan.invite(candidates, job.clients_per_round, seed))
            else:
                settled = min(settled, loop.time() + SETTLE_S)
            await self._wait(settled)

    async def _begin(self) -> None:
        """Make the first weights, for the samples that most trainers have. Raises WorkerError."""
        shape = round_plan.sample_shape(self._states, self._memory.job)
        result = await run_step(self._settings, "initial", shape=shape)
        if result.reason:
            raise WorkerError(result.reason, result.message)
        self._weights = await asyncio.to_thread(first_weights, self._settings.job, self._earlier, result)
        await asyncio.to_thread(self._store)

    async def _open(self, invited: list[str]) -> RoundPlan:
        """Open a round. It is stored first, so that the next process repeats the same one."""
        memory, job = self._memory, self._settings.job
        if memory.invited != invited:
            memory.invited = invited
            await asyncio.to_thread(self._save)
        self._accepted = {}
        # a state that names no round is judged in each round
        self._judged = {name: identity for name, identity in self._judged.items() if identity[1]}
        self._plan = RoundPlan(
            memory.job,
            memory.epoch,
            memory.number,
            tuple(invited),
            asyncio.get_running_loop().time() + job.round_deadline_s,
            size_limit(memory.specs),
            only_evaluate=memory.number > job.rounds,
            counted=frozenset(memory.counted),
        )
        self._reporter.set("running", "", self._summary())
        await self._publisher.publish()  # all trainers wait for it
        return self._plan

    async def _collect(self, plan: RoundPlan) -> None:
        """Receive updates until the round is over."""
        fetching: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while not plan.is_over(asyncio.get_running_loop().time()):
                self._changed.clear()
                for name, state in self._unjudged_states():
                    verdict = plan.judge(name, state)
                    if verdict is UpdateVerdict.FETCH:
                        if name in fetching:
                            fetching[name].cancel()
                        fetching[name] = group.create_task(self._fetch(plan, name, state), name=f"update of {name}")
                    else:
                        self._settle(plan, name, state, verdict)
                await self._wait(plan.until)
            for task in fetching.values():
                task.cancel()

    def _unjudged_states(self) -> Iterator[tuple[str, TrainerState]]:
        """Yield each state that was not judged yet."""
        for name, state in list(self._states.items()):
            identity = round_plan.update_identity(state)
            if self._judged.get(name) != identity:
                self._judged[name] = identity
                yield name, state

    def _settle(self, plan: RoundPlan, name: str, state: TrainerState, verdict: UpdateVerdict) -> None:
        """Act on a state that has no update to fetch."""
        if verdict is UpdateVerdict.EVALUATED:
            self._accept(plan, name, Accepted(state, {}))
        elif verdict is UpdateVerdict.DECLINED:
            self._refuse(plan, name, state.reason, state.message)
        elif verdict is UpdateVerdict.TOO_LARGE:
            self._refuse(plan, name, verdict)
        elif verdict is not UpdateVerdict.NOTHING:
            self._count(verdict)
            log.warning("update refused", trainer=name, reason=verdict, number=state.number)

    async def _fetch(self, plan: RoundPlan, name: str, state: TrainerState) -> None:
        """Fetch an update and check it; tries until the round is over."""
        assert state.update is not None  # noqa: S101  # of the verdict
        while True:
            try:
                content = await self._exchange.fetch(name, state.update, plan.most_bytes)
                delta = await asyncio.to_thread(decode_finite, content, self._memory.specs)
            except WeightsError as error:
                self._refuse(plan, name, error.reason, str(error))
                return
            except (FetchError, BusError) as error:
                log.info("update not fetched", trainer=name, number=plan.number, error=str(error))
            else:
                self._accept(plan, name, Accepted(state, delta))
                return
            await asyncio.sleep(FETCH_AGAIN_S)

    def _accept(self, plan: RoundPlan, name: str, accepted: Accepted) -> None:
        self._accepted[name] = accepted
        plan.received.append(name)
        self._received += 1
        self._touch()

    def _refuse(self, plan: RoundPlan, name: str, reason: str, message: str = "") -> None:
        plan.refused[name] = reason
        self._count(reason)
        log.warning("update refused", trainer=name, reason=reason, message=message, number=plan.number)
        self._touch()

    async def _conclude(self, plan: RoundPlan) -> None:
        """Make the next weights of a round's updates; without enough of them, the round is repeated."""
        memory, job = self._memory, self._settings.job
        memory.invited = []
        if not plan.has_enough(job.min_clients):
            memory.epoch += 1
            self._count("RoundRepeated")
            log.warning("round repeated", number=plan.number, received=plan.received, refused=plan.refused)
            await asyncio.to_thread(self._save)
            return
        states = {name: accepted.state for name, accepted in sorted(self._accepted.items())}
        if metrics := round_plan.mean_metrics(states):
            memory.metrics, memory.evaluated = metrics, plan.number
        log.info("round done", number=plan.number, received=len(states), metrics=metrics)
        if round_plan.is_target_reached(job.target, metrics):
            memory.reason = TARGET_REACHED  # the weights that were evaluated are those of the model
        elif plan.only_evaluate:
            memory.reason = ROUNDS_DONE
        else:
            await asyncio.to_thread(self._aggregate, states)
            memory.counted = list(states)
            memory.number += 1
        await asyncio.to_thread(self._store)

    def _aggregate(self, states: Mapping[str, TrainerState]) -> None:
        samples = round_plan.trainer_weights({name: state.samples for name, state in states.items()})
        updates, names = clip([Update(name, samples[name], self._accepted[name].delta) for name in samples])
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
        """Store a compressed change towards the aggregated weights; return the weights that trainers make with it."""
        memory, feedback = self._memory, ErrorFeedback(self._settings.job.compression)
        if memory.residual:
            feedback.residual = decode(self._checkpoint.read(memory.residual), memory.specs)
        weights, change = feedback.advance(self._weights, aggregated)
        memory.base, memory.change = memory.weights, self._add(change)
        memory.residual = self._checkpoint.add(encode(feedback.residual))
        return weights

    async def _export(self) -> None:
        """Make the ONNX model of the final weights. Raises WorkerError."""
        memory = self._memory
        content = await asyncio.to_thread(encode, self._weights)
        result = await run_step(self._settings, "export", weights=content, specs=memory.specs)
        if result.reason:
            raise WorkerError("ExportFailed", f"{result.reason}: {result.message}")
        memory.model = await asyncio.to_thread(self._add, result.content)
        await asyncio.to_thread(self._earlier.keep, memory.model, content)
        await asyncio.to_thread(self._save)

    # --- states -----------------------------------------------------------------------------------------------------

    async def _published(self, delivery: Delivery[TrainerState]) -> None:
        """Receive a trainer's state. Only those of the job's trainers count, from their own nodes."""
        name = delivery.names["trainer"]
        if self._settings.job.trainers.get(name) != delivery.names["node"]:
            self._count(UpdateVerdict.NOT_INVITED)
            log.warning("trainer unknown", trainer=name, node=delivery.names["node"])
            return
        self._states[name] = delivery.body
        self._changed.set()

    async def _cleared(self, names: Mapping[str, str]) -> None:
        """Forget a trainer that is gone. Its update counts if it was fetched."""
        if self._settings.job.trainers.get(names["trainer"]) == names["node"]:
            self._states.pop(names["trainer"], None)
            self._changed.set()

    async def _wait(self, until: float) -> None:
        """Wait for a change, at most until a time of the loop's clock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if until == math.inf else until):
                await self._changed.wait()

    def _touch(self) -> None:
        self._changed.set()
        self._publisher.touch()
        self._reporter.set("running", "", self._summary())

    def _wait_for(self, text: str) -> None:
        if text != self._waiting:
            self._waiting = text
            self._publisher.touch()
            self._reporter.set("running", TOO_FEW if text else "", text)

    def _count(self, reason: str) -> None:
        if reason in self._memory.dropped or len(self._memory.dropped) < MOST_REASONS:
            self._memory.dropped[reason] = self._memory.dropped.get(reason, 0) + 1

    def _summary(self) -> str:
        """Return the progress in one line."""
        memory, plan = self._memory, self._plan
        shown = ", ".join(f"{key} {value:.4g}" for key, value in memory.metrics.items())
        rounds = f"round {min(memory.number, self._settings.job.rounds)} of {self._settings.job.rounds}"
        done = f", {len(plan.received)} of {len(plan.invited)} trainers" if plan else ""
        return f"{rounds}{done}" + (f"; {shown} (round {memory.evaluated})" if shown else "")

    @property
    def _stage(self) -> Literal["waiting", "open", "done"]:
        if self._memory.model:
            return "done"
        return "open" if self._plan and self._memory.invited else "waiting"

    def _progress(self) -> TrainingProgress:
        """Return the progress for the worker's report."""
        memory, rounds = self._memory, self._settings.job.rounds
        return TrainingProgress(
            run=memory.job,
            state=self._stage,
            round=min(memory.number, rounds),
            rounds=rounds,
            reason=memory.reason or (TOO_FEW if self._waiting else ""),
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
        return self._bytes_before + self._exchange.moved_bytes

    def _body(self) -> TrainingRound:
        """Return the round as it is published."""
        memory, plan, job = self._memory, self._plan, self._settings.job
        state = self._stage
        now = asyncio.get_running_loop().time()
        return TrainingRound(
            job=memory.job,
            epoch=memory.epoch,
            number=memory.number,
            state=state,
            reason=memory.reason or (TOO_FEW if self._waiting else ""),
            message=self._waiting,
            source=self._settings.worker.worker,
            weights=self._file(memory.weights),
            change=self._file(memory.change),
            base=memory.base,
            specs=memory.specs,
            invited=list(memory.invited),
            counted=memory.counted,
            received=sorted(plan.received) if plan else [],
            refused=dict(plan.refused) if plan else {},
            only_evaluate=memory.number > job.rounds,
            remaining_ms=max(0.0, plan.until - now) * 1000 if plan and state == "open" else 0.0,
            seed=round_plan.round_seed(job.seed, memory.number),
            parameters=self._aggregation.trainer_parameters(),
            compression=job.compression,
            metrics=memory.metrics,
            evaluated=memory.evaluated,
            dropped=dict(memory.dropped),
            model=self._file(memory.model),
        )

    def _file(self, digest: str) -> TensorFile | None:
        return TensorFile(digest=digest, size=self._sizes[digest]) if digest else None

    # --- the checkpoint: blocking ---------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Continue with the checkpoint of this job, under the next epoch. Raises CheckpointError."""
        memory = self._checkpoint.load()
        if memory and memory.job == self._memory.job:
            self._memory = memory
            if memory.reason == ROUNDS_DONE and memory.number <= self._settings.job.rounds:
                memory.reason, memory.model = "", ""  # an edit asks for more rounds
            if memory.weights:
                content = self._checkpoint.read(memory.weights)
                self._weights = decode(content, memory.specs)
            if memory.state:
                self._aggregation.restore(decode(self._checkpoint.read(memory.state), memory.state_specs))
            self._bytes_before = memory.bytes
            self._offer()
        self._memory.epoch += 1
        self._save()

    def _store(self) -> None:
        """Store the present weights, and what the aggregation keeps."""
        memory, state = self._memory, self._aggregation.state()
        memory.specs = specs_of(self._weights)
        memory.weights = self._add(encode(self._weights))
        memory.state_specs = specs_of(state) if state else []
        memory.state = self._add(encode(state)) if state else ""
        self._save()

    def _add(self, content: bytes) -> str:
        digest = self._checkpoint.add(content)
        self._sizes[digest] = len(content)
        return digest

    def _save(self) -> None:
        self._memory.bytes = self._bytes
        self._checkpoint.save(self._memory, self._memory.files)
        self._offer()

    def _offer(self) -> None:
        """Offer the weights, their change and the model to the trainers."""
        offered = {digest: self._checkpoint.folder / digest for digest in self._memory.offered}
        self._sizes = {digest: path.stat().st_size for digest, path in offered.items()}
        self._exchange.offered = offered


def _is_same_but_for_time(one: TrainingRound, other: TrainingRound) -> bool:
    """Whether two rounds differ only in the time that remains."""
    return msgspec.structs.replace(one, remaining_ms=0.0) == msgspec.structs.replace(other, remaining_ms=0.0)
