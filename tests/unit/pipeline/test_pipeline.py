"""One pipeline answers the samples of all its intakes with one model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from halimede.errors import DecodeError
from halimede.messages import Prediction, Reply
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import Inference, InferenceOutcome
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.observer import IntakeMetrics, Observer
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.sample import NOT_ESCALATED, Conclusion, Sample
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.tracing import CloudTimes, TraceBuffer
from tests.simulated import eventually
from tests.unit.frames.clouds import Brightness, frame
from tests.unit.pipeline.answering import AUDIT, LIMIT, UP, Collector, Held, Ours, answering, new_sample, short


async def test_calls_run_side_by_side_where_the_model_has_several_threads(thread: ModelThread) -> None:
    model = Held()
    async with ModelThread() as other, answering(ModelSlot(LoadedModel(model, thread, more=[other]))) as one:
        asking = asyncio.create_task(one.answer([frame(1), frame(2)]))
        await eventually(lambda: thread.busy_s > 0 and other.busy_s > 0)
        model.gate.set()
        await asking
    assert sorted(model.batches) == [[1], [2]]


class Expiring(Collector):
    """Notes which samples are dropped, and whether as hopeless."""

    drops_late = True

    def __init__(self) -> None:
        super().__init__(IntakeMetrics.in_cloud(CloudTimes()))
        self.expired: list[tuple[Sample, bool]] = []

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        self.expired.append((sample, hopeless))

    def accept(self, **fields: Any) -> tuple[Sample, asyncio.Future[Conclusion]]:
        """Return a sample and its conclusion."""
        sample = new_sample(frame(0), self, **fields)
        self.conclusions[sample] = asyncio.get_running_loop().create_future()
        return sample, self.conclusions[sample]


def samples(intake: Collector, count: int = 1, until: float = math.inf) -> list[Sample]:
    return [new_sample(frame(value), intake, until=until) for value in range(count)]


@pytest.fixture(name="idle")
async def _idle(thread: ModelThread) -> AsyncIterator[Pipeline]:
    """A pipeline of two sessions with a short model, which does not run."""
    async with ModelThread() as other:
        loaded = LoadedModel(Ours(), thread, more=[other])
        loaded.inline_policy = short()
        rate = ServiceRate(queue=LIMIT, batch=LIMIT, horizon_s=1e6)
        rate.learn(1, 0.5)
        yield Pipeline(ModelSlot(loaded), rate, Inference(LIMIT), Observer(rate, TraceBuffer()))


@pytest.fixture(name="spawned")
def _spawned(idle: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks that the pipeline would start."""
    names: list[str] = []
    monkeypatch.setattr(idle, "_spawn", lambda work, name: (work.close(), names.append(name)))
    return names


@pytest.mark.parametrize("step", ["learn", "run", "run again", "conclude", "send", "observe", "infer"])
async def test_another_number_of_outcomes_than_samples_is_a_defect(
    idle: Pipeline, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, one, model = samples(Expiring(), 2), [InferenceOutcome()], idle.slot.current

    async def run(*_: object) -> list[InferenceOutcome]:
        return one

    monkeypatch.setattr(model, "run", run)
    monkeypatch.setattr("halimede.pipeline.inference.isolate", lambda *_: [Prediction()])
    failed = dict.fromkeys(two, one[0])
    steps: dict[str, Callable[[], Coroutine[Any, Any, Any] | list[Any] | None]] = {
        "learn": lambda: model._learn(two, one),
        "run": lambda: idle._run(two),
        "run again": lambda: idle._run_again(model, model, two, failed),
        "conclude": lambda: idle._conclude(two, one, 0.0),
        "send": lambda: idle._send(two[1:], []),
        "observe": lambda: idle.observer.observe(two, one, 0.0),
        "infer": lambda: Inference(LIMIT)(Brightness(), two),
    }
    with pytest.raises(ValueError, match=r"zip\(\)"):  # noqa: PT012  # some are coroutines
        if isinstance(work := steps[step](), Coroutine):
            await work


@pytest.mark.parametrize(
    ("inside", "queued", "credits_"), [(4, 2, LIMIT - 2), (LIMIT + 2, LIMIT, 0), (LIMIT + 5, LIMIT + 3, 0)]
)
async def test_the_load_counts_what_the_model_has_to_answer(
    idle: Pipeline, inside: int, queued: int, credits_: int
) -> None:
    idle.preparing, idle.inside, idle.delegated = 2, inside, 4
    load = idle.load()
    assert (load.credits, load.queued, load.service_ms) == (credits_, queued, 0.25)


@pytest.mark.parametrize(
    ("calls", "waiting", "size"), [(0, 5, 3), (0, 4, 2), (1, 5, 5), (2, 5, 5), (3, 5, 5), (0, 1, 1)]
)
async def test_idle_sessions_share_the_queue(idle: Pipeline, calls: int, waiting: int, size: int) -> None:
    idle._calls = calls
    idle._queue.waiting.extend(samples(Expiring(), waiting))
    assert len(await idle._next_batch()) == size
    assert len(idle._queue.waiting) == waiting - size


async def test_a_short_model_gets_no_more_samples_than_it_may_have_on_the_event_loop(idle: Pipeline) -> None:
    idle.slot.guarded = True
    idle._queue.waiting.extend(samples(Expiring(), 50))
    for ours in (True, False):
        idle._infer.ours = ours
        before = len(idle._queue.waiting)
        most = idle.slot.current.inline_policy.max_samples
        assert len(await idle._next_batch()) == (most if ours else -(-(50 - most) // 2))
        assert len(idle._queue.waiting) < before


async def test_a_batch_that_fails_counts_as_no_call_and_keeps_no_model(idle: Pipeline) -> None:
    idle._infer = lambda *_: []  # type: ignore[assignment]
    idle._infer.ours = False
    for _ in range(2):
        with pytest.raises(ValueError, match="zip"):
            await idle._run(samples(Expiring()))
    assert (idle._calls, idle.slot.current._leases) == (0, 0)


@pytest.mark.parametrize(
    ("has_peers", "is_running", "peer", "moved"),
    [(True, True, "e1", 2), (True, True, None, 0), (True, False, "e1", 0), (False, True, "e1", 0)],
)
async def test_waiting_samples_but_the_next_one_leave_for_peers_while_the_pipeline_runs(
    idle: Pipeline, spawned: list[str], *, has_peers: bool, is_running: bool, peer: str | None, moved: int
) -> None:
    intake, released = Expiring(), list[Sample]()
    intake.release_input = released.append  # type: ignore[method-assign]
    waiting = samples(intake, 3)
    for sample in waiting:
        sample.stays = False
    idle._queue.waiting.extend(waiting)
    idle.peers = SimpleNamespace(reserve_peer=lambda: peer) if has_peers else None  # type: ignore[assignment]
    idle._group = SimpleNamespace() if is_running else None  # type: ignore[assignment]
    idle.rebalance()
    assert (spawned, released, idle.delegated) == (["share"] * moved, waiting[:0:-1][:moved], moved)
    assert list(idle._queue.waiting) == waiting[: 3 - moved]


@pytest.mark.simulated
async def test_samples_that_are_dropped_from_the_queue_are_not_inside_any_more(idle: Pipeline) -> None:
    intake = Expiring()
    now = asyncio.get_running_loop().time()
    late, hopeless, fine = samples(intake, 2, now - 1), samples(intake, 1, now + 0.0001), samples(intake)
    idle.inside = 4
    idle._queue.waiting.extend([*late, *hopeless, *fine])
    assert idle._take_batch(LIMIT) == fine
    assert intake.expired == [(late[0], False), (late[1], False), (hopeless[0], True)]
    assert idle.inside == 1


@pytest.mark.simulated
async def test_a_drain_ends_with_the_last_sample_or_at_its_deadline(idle: Pipeline) -> None:
    idle.inside = 1
    assert not await idle.drain(5)
    assert asyncio.get_running_loop().time() == 5
    idle.inside = 0
    assert await idle.drain(5)


@pytest.mark.parametrize(
    ("decision", "has_peers", "stays", "is_prepared", "task"),
    [
        (UP, True, False, False, "escalate"),
        (AUDIT, False, False, False, None),
        (None, True, False, False, "share"),
        (AUDIT, True, False, False, "share"),
        (None, False, False, False, None),
        (None, True, True, False, None),
        (None, True, False, True, None),
    ],
)
async def test_a_sample_is_for_the_next_tier_or_a_peer_or_the_model_here(
    idle: Pipeline,
    spawned: list[str],
    *,
    decision: UploadDecision | None,
    has_peers: bool,
    stays: bool,
    is_prepared: bool,
    task: str | None,
) -> None:
    if has_peers:
        idle.peers = SimpleNamespace()  # type: ignore[assignment]
    consumer = asyncio.create_task(idle._queue.arrival())
    await asyncio.sleep(0)
    model_input = np.zeros(1) if is_prepared else None
    idle.submit(new_sample(intake=Expiring(), decision=decision, stays=stays, input=model_input))
    await asyncio.sleep(0.01)
    assert (spawned, len(idle._queue.waiting), consumer.done()) == (([task], 0, False) if task else ([], 1, True))
    consumer.cancel()
    assert (idle.inside, idle.delegated) == (1, len(spawned))


@pytest.mark.parametrize(
    ("boxes", "decision", "has_escalation", "tasks"),
    [
        (None, NOT_ESCALATED, True, []),
        (None, AUDIT, True, ["audit"]),
        (None, AUDIT, False, []),
        (None, UP, True, ["escalate"]),
        ([], NOT_ESCALATED, False, []),
        ([None], NOT_ESCALATED, False, ["crops"]),
    ],
)
async def test_a_sample_has_its_answer_or_is_delegated_and_an_audit_is_made_beside_its_answer(
    idle: Pipeline,
    spawned: list[str],
    *,
    boxes: list[Any] | None,
    decision: UploadDecision,
    has_escalation: bool,
    tasks: list[str],
) -> None:
    async def work(*_: object) -> None: ...

    idle._crops = None if boxes is None else SimpleNamespace(select=lambda _: boxes, recognise=work)  # type: ignore[assignment]
    idle._recognise = lambda _, recognition: recognition  # type: ignore[assignment, method-assign, return-value]
    intake = Expiring()
    if has_escalation:
        intake.escalation = SimpleNamespace(audit=work, request=work)  # type: ignore[assignment]
    sample, answer = intake.accept()
    idle.inside = 1
    idle._send([sample], [Conclusion(InferenceOutcome(), decision)])
    is_delegated = tasks in (["escalate"], ["crops"])
    assert (spawned, answer.done()) == (tasks, not is_delegated)
    assert idle.inside == idle.delegated == is_delegated


@pytest.mark.parametrize(
    "obstacle", [None, "a call runs", "it may wait", "peers", "it does not run", "a user's mining", "a full outbox"]
)
async def test_a_sample_runs_on_the_event_loop_only_while_nothing_is_in_its_way(
    idle: Pipeline, obstacle: str | None
) -> None:
    idle.slot.guarded = True
    intake = Expiring()
    intake.outbox.immediate = obstacle != "a full outbox"
    idle._calls = int(obstacle == "a call runs")
    idle._queue.delay_s = float(obstacle == "it may wait")
    idle._infer.ours = obstacle != "a user's mining"
    if obstacle == "peers":
        idle.peers = SimpleNamespace()  # type: ignore[assignment]
    if obstacle != "it does not run":
        idle._group = SimpleNamespace()  # type: ignore[assignment]
    assert idle._inline_model(samples(intake)[0]) is (None if obstacle else idle.slot.current)


class Peers:
    """A peer that answers as it is told."""

    def __init__(self, answer: Reply | Exception) -> None:
        self.answer = answer
        self.deadlines: list[float] = []

    async def ask(self, frame: object, deadline_s: float, trace: object) -> Reply:
        self.deadlines.append(deadline_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def reserve_peer(self) -> str | None:
        return None


def fatal() -> OffloadError:
    error = OffloadError(OffloadReason.ERROR, "it ended two workers")
    error.fatal = True
    return error


PEERS_REPLY = Reply(id=bytes(16), worker="e1", model="v2", prediction=Prediction(label="7"), batch=3, compute_ms=8.0)


@pytest.mark.parametrize(("deadline_s", "until", "left_s"), [(5.0, 9.0, 5.0), (5.0, 3.0, 3.0)])
@pytest.mark.simulated
async def test_the_answer_of_a_peer_is_mined_and_concluded_here(
    idle: Pipeline, deadline_s: float, until: float, left_s: float
) -> None:
    intake, decided = Expiring(), list[InferenceOutcome]()
    intake.escalation = SimpleNamespace(  # type: ignore[assignment]
        decide=lambda _, outcome, __: decided.append(outcome) or NOT_ESCALATED
    )
    idle.peers, idle._deadline_s, idle.inside, idle.delegated = Peers(PEERS_REPLY), deadline_s, 2, 2
    idle._infer = Inference(LIMIT, lambda _: True)
    for is_mined in (True, False):
        sample, conclusion = intake.accept(until=until, mined=is_mined)
        await idle._share(sample)
        outcome = conclusion.result().outcome
        assert (sample.peer, sample.version, outcome.prediction) == ("e1", "v2", Prediction(label="7"))
        assert (outcome.batch, outcome.ms, outcome.verdict is not None) == (3, 8.0, is_mined)
    assert (idle.peers.deadlines, len(decided), idle.inside, idle.delegated) == ([left_s] * 2, 2, 0, 0)


@pytest.mark.parametrize(
    ("error", "unreadable", "stays", "shown"),
    [
        (OffloadError(OffloadReason.ERROR), False, True, None),
        (OffloadError(OffloadReason.TOO_LARGE), False, True, None),
        (OffloadError(OffloadReason.DEADLINE), False, False, None),
        (RuntimeError("a defect"), False, False, None),
        (OffloadError(OffloadReason.DEADLINE), True, False, ("no picture", True)),
        (fatal(), False, False, ("it ended two workers", False)),
    ],
)
@pytest.mark.parametrize("decision", [AUDIT, None])
@pytest.mark.simulated
async def test_a_sample_that_no_peer_answers_is_for_the_model_here_unless_it_ends_workers(
    idle: Pipeline,
    *,
    decision: UploadDecision | None,
    error: Exception,
    unreadable: bool,
    stays: bool,
    shown: tuple[str, bool] | None,
) -> None:
    async def prepare(_: Sample) -> None:
        if unreadable:
            raise DecodeError("no picture")

    intake, forgotten = Expiring(), list[UploadDecision]()
    intake.prepare = prepare  # type: ignore[method-assign]
    intake.escalation = SimpleNamespace(forget=forgotten.append)  # type: ignore[assignment]
    idle.peers, idle.inside, idle.delegated = Peers(error), 1, 1
    sample, conclusion = intake.accept(stays=False, stale_at=1.0, decision=decision)
    await idle._share(sample)
    assert (sample.stays, idle.delegated) == (stays, 0)
    if shown is None:
        assert (list(idle._queue.waiting), sample.stale_at, idle.inside, forgotten) == ([sample], math.inf, 1, [])
    else:
        outcome = conclusion.result().outcome
        assert (outcome.error, outcome.unfit) == shown
        assert (idle.inside, forgotten) == (0, [decision] if decision else [])


@pytest.mark.parametrize(
    ("reply", "decision", "prediction", "runs"),
    [
        (None, UP, None, True),
        (None, None, None, False),
        (None, UP, Prediction(), False),
        (PEERS_REPLY, UP, None, False),
    ],
)
@pytest.mark.simulated
async def test_the_model_that_mining_skipped_runs_if_the_next_tier_gives_no_answer(
    idle: Pipeline, *, reply: Reply | None, decision: UploadDecision | None, prediction: Prediction | None, runs: bool
) -> None:
    async def request(_: Sample, outcome: InferenceOutcome, decision: UploadDecision) -> Conclusion:
        return Conclusion(outcome, decision, reply=reply)

    intake = Expiring()
    intake.escalation = SimpleNamespace(request=request)  # type: ignore[assignment]
    sample, conclusion = intake.accept(decision=decision)
    idle.inside, idle.delegated = 1, 1
    await idle._escalate(sample, InferenceOutcome(prediction), UP)
    assert (conclusion.result().outcome.prediction == Prediction(label="0", score=1.0)) == runs
    assert (idle.inside, idle.delegated) == (0, 0)
