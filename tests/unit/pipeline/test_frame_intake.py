"""A frame that is offered is accepted, repeated, skipped or rejected, and read by the model that the rollout names."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from halimede.errors import DecodeError
from halimede.frames import new_frame, pack
from halimede.inference import Array, SampleError
from halimede.messages import Count, Frame, Prediction, Result
from halimede.mining import Miner
from halimede.mining.edge_only import EdgeOnly
from halimede.mining.margin import Margin
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import EdgeLimits, FrameIntake, _StaleFrameError
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.observer import IntakeMetrics
from halimede.pipeline.sample import Sample
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.tracing import EdgeTimes, TraceBuffer, TraceContext
from halimede.tracing.steps import DECODE, MINE, MODEL, RECEIVE, RESULT, WAIT
from tests.simulated import eventually
from tests.unit.frames.clouds import Brightness, frame
from tests.unit.pipeline.answering import AUDIT, UP, Counts, edge_worker, new_sample

pytestmark = pytest.mark.simulated


PARENT = TraceContext(0xAB, 0xCD, True)


class Blind(Brightness):
    """Reads no frame."""

    def prepare(self, image: Array) -> Array:
        raise SampleError(f"it wants another shape than {image.shape}")


def try_blind(entrance: Entrance) -> list[str]:
    """Try a model out that reads no frame; return what is said when it is withdrawn."""
    messages, slot = list[str](), entrance.pipeline.slot
    slot.try_out(LoadedModel(Blind(), entrance.thread, "2"), 100, lambda: messages.append(slot.rollout.message))
    return messages


async def test_a_frame_that_a_canary_cannot_read_is_the_others_and_the_canary_is_withdrawn(entrance: Entrance) -> None:
    intake, messages, slot = entrance.intake(), try_blind(entrance), entrance.pipeline.slot
    canary = slot.rollout.canary
    for i in range(3):
        assert slot.rollout.canary is canary
        sample = sample_of(intake, frame(i))
        await intake.prepare(sample)
        assert sample.input is not None
        assert (sample.model, int(sample.input.flat[0])) == (slot.current, i)
    assert slot.rollout.canary is None
    (message,) = messages
    assert "another shape" in message


async def test_a_frame_that_neither_can_read_is_refused_and_no_strike(entrance: Entrance) -> None:
    intake, messages, slot = entrance.intake(), try_blind(entrance), entrance.pipeline.slot
    canary = slot.rollout.canary
    for _ in range(5):
        with pytest.raises(DecodeError):
            await intake.prepare(sample_of(intake, frame(1, (2, 2, 3))))
    assert (slot.rollout.canary, messages) == (canary, [])


class Reading(Brightness):
    """Notes in which threads it reads frames."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def prepare(self, image: Array) -> Array:
        self.threads.append(threading.get_ident())
        return super().prepare(image)


async def test_a_frame_that_waited_too_long_for_a_place_is_acknowledged_counted_and_not_decoded(
    thread: ModelThread,
) -> None:
    loop, acknowledged, ledger, model = asyncio.get_running_loop(), list[int](), Counts(), Reading()
    limits, slot = EdgeLimits(inside=2, max_age_s=0.1), ModelSlot(LoadedModel(model, thread, "1"))
    worker = edge_worker(slot, ledger, Taking(), limits=limits)
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            answered, arrived = partial(acknowledged.append, number), loop.time() if number else math.inf
            offer = worker.intake.offer(pack(frame(number)), "cam0", answered=answered, arrived=arrived)
            group.create_task(offer)
        await eventually(lambda: worker.pipeline.inside == 2)
        assert len(model.threads) == 2
        await asyncio.sleep(0.15)
        running = group.create_task(worker.run())
        await eventually(lambda: len(acknowledged) == 5)
        # the first one has no age; those that waited for a place were not read
        assert sorted(acknowledged) == list(range(5))
        assert len(model.threads) == 2
        assert +ledger == {Count.SKIPPED: 4, Count.ACCEPTED: 1, Count.ANSWERED: 1}
        assert (worker.pipeline.inside, worker.pipeline.preparing) == (0, 0)
        running.cancel()


async def test_the_deadline_of_a_frame_counts_from_its_acceptance(entrance: Entrance) -> None:
    intake = entrance.intake()
    await asyncio.sleep(1)
    for number, deadline_ms in enumerate((0.0, 1500.0)):
        await intake.offer(pack(msgspec.structs.replace(frame(number), deadline_ms=deadline_ms)), "cam0")
    assert [sample.until for sample in entrance.samples] == [math.inf, 2.5]


class Taking:
    """Takes every result at once."""

    immediate = ready = True
    waiting = 0

    def put(self, _: object, __: Result, done: Callable[[int], None], **___: object) -> None:
        asyncio.get_running_loop().call_soon(done, 0)

    async def wait_ready(self) -> None: ...

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


async def test_the_trace_of_a_frame_has_its_steps_in_their_order(
    thread: ModelThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[Any, ...]] = []
    finish = TraceBuffer.finish
    monkeypatch.setattr(TraceBuffer, "finish", lambda self, record: (steps.extend(record.steps), finish(self, record)))
    body, escalation = frame(7), Escalation(cast("Any", None), cast("Any", Counts()))
    slot = ModelSlot(LoadedModel(Brightness(), thread, "1"))
    worker = edge_worker(slot, outbox=Taking(), miner=EdgeOnly(), mines_first=True, escalation=escalation)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await eventually(lambda: worker.pipeline.running)
        await worker.intake.offer(pack(body), "cam0", file="a.png")
        await eventually(lambda: len(steps) == 6)
        running.cancel()
    assert [(step[0], *step[3:]) for step in steps] == [
        (RECEIVE, "cam0", len(body.data), "raw", "a.png"),
        (MINE, False, 0.0),
        (DECODE, 1),
        (WAIT,),
        (MODEL, 1),
        (RESULT, "edge", False, "7"),
    ]
    assert all(began <= ended for _, began, ended, *_ in steps)


async def test_a_frame_offered_after_the_end_is_neither_accepted_nor_acknowledged(thread: ModelThread) -> None:
    ledger = Counts()
    worker = edge_worker(ModelSlot(LoadedModel(Brightness(), thread)), ledger)
    assert await worker.drain(1)
    offered = asyncio.create_task(worker.intake.offer(pack(frame()), "cam0"))
    await asyncio.sleep(60)
    assert (offered.done(), ledger) == (False, {})
    offered.cancel()


async def test_small_raw_frames_are_prepared_on_the_loop_and_others_in_the_thread(entrance: Entrance) -> None:
    intake, model = entrance.intake(), Reading()
    entrance.pipeline.slot.replace(LoadedModel(model, entrance.thread, "1"))
    small, large = frame(1, (256, 256)), frame(1, (257, 256))
    for body in (small, large, new_frame(np.ones((2, 2), np.uint8), encoding="png")):
        await intake.prepare(sample_of(intake, body))
    assert [ident == threading.get_ident() for ident in model.threads] == [True, False, False]


async def test_a_frame_that_mining_cannot_judge_is_counted_and_hard(entrance: Entrance) -> None:
    intake = entrance.intake()
    for body in (frame(1), frame(1, (300, 300))):
        verdict = await intake._mine(sample_of(intake, body), Margin())
        assert verdict.hard
    assert entrance.counts[Count.MINING_ERRORS] == 2


class Widening(Brightness):
    """Prepares an input of eight times the bytes of its picture."""

    def prepare(self, image: Array) -> Array:
        return super().prepare(image).astype(np.float64)


class Entrance:
    """An intake before a pipeline that only notes the samples that it gets."""

    def __init__(self, thread: ModelThread) -> None:
        self.samples: list[Sample] = []
        self.counts, self.times = Counts(), EdgeTimes()
        self.acknowledged: list[bytes] = []
        self.forgotten: list[UploadDecision] = []
        self.thread = thread
        self.loaded = LoadedModel(Widening(), thread)
        self.pipeline: Any = SimpleNamespace(
            preparing=0, running=True, peers=None, slot=ModelSlot(self.loaded), submit=self.samples.append
        )
        self.responder: Any = SimpleNamespace(
            add_source=lambda *_: None,
            forget_sources=lambda *_: None,
            rejoin_source=lambda *_: None,
            acknowledge=self.acknowledged.append,
        )
        self.escalation: Any = SimpleNamespace(forget=self.forgotten.append)

    def intake(self, *, escalation: bool = False, miner: Miner | None = None, **limits: Any) -> FrameIntake:
        ledger: Any = self.counts
        return FrameIntake(
            self.pipeline,
            self.responder,
            IntakeMetrics.at_edge(self.times, ledger),
            ledger=ledger,
            decoder=self.thread,
            trace_buffer=TraceBuffer(),
            limits=EdgeLimits(**limits),
            escalation=self.escalation if escalation else None,
            miner=miner,
        )


@pytest.fixture(name="entrance")
def _entrance(thread: ModelThread) -> Entrance:
    return Entrance(thread)


def sample_of(intake: FrameIntake, body: Frame, **fields: Any) -> Sample:
    return new_sample(body, intake, pixels=body.data.nbytes, **fields)


async def test_what_a_source_knows_of_a_frame_is_used_before_what_its_payload_says(entrance: Entrance) -> None:
    intake, bodies = entrance.intake(), [frame(1), frame(2)]
    for body in bodies:
        body.file, body.captured_ns = "own.png", 5
    bodies[1].captured_ns = 0
    await intake.offer(pack(bodies[0]), "cam0")
    await intake.offer(pack(bodies[1]), "cam0", id_=b"x" * 16, file="other.png", parent=PARENT)
    first, second = (sample.frame for sample in entrance.samples)
    assert (first.id, first.file, first.captured_ns, first.camera) == (bodies[0].id, "own.png", 5, "cam0")
    assert (second.id, second.file) == (b"x" * 16, "other.png")
    assert second.captured_ns > 0
    assert [sample.trace.parent for sample in entrance.samples] == [None, PARENT]
    assert [(sample.stays, sample.input is not None) for sample in entrance.samples] == [(True, True)] * 2


async def test_a_frame_that_a_peer_gets_may_leave_and_is_not_prepared(entrance: Entrance) -> None:
    entrance.pipeline.peers = SimpleNamespace(reserve_peer=lambda: "e1")
    intake = entrance.intake(max_age_s=0.5)
    await intake.offer(pack(frame(1)), "cam0")
    await intake.offer(pack(frame(2)), "cam0", arrived=asyncio.get_running_loop().time() - 0.75)
    assert [(sample.stays, sample.input) for sample in entrance.samples] == [(False, None)]
    assert entrance.counts == {Count.ACCEPTED: 1, Count.SKIPPED: 1, Count.REJECTED: 0}


async def test_an_offered_frame_is_counted_by_what_becomes_of_it(entrance: Entrance) -> None:
    loop, intake = asyncio.get_running_loop(), entrance.intake(max_age_s=0.5)
    await asyncio.sleep(1)

    async def offer(body: Frame, **options: Any) -> Counts:
        before = Counts(entrance.counts)
        try:
            await intake.offer(pack(body), "cam0", **options)
        except DecodeError:
            assert entrance.counts[Count.REJECTED] == before[Count.REJECTED] + 1
        return Counts({count: n - before[count] for count, n in entrance.counts.items() if n != before[count]})

    body, broken = frame(1), new_frame(np.ones((2, 2), np.uint8), encoding="png")
    broken.data = broken.data[:40]
    assert await offer(body, arrived=loop.time() - 0.4375) == {Count.ACCEPTED: 1}
    assert await offer(body) == {Count.DUPLICATE: 1}
    assert await offer(frame(1), answered=lambda: None) == {}, "it is counted with its answer"
    for late_s in (0.5, 0.75):
        assert await offer(frame(2), arrived=loop.time() - late_s) == {Count.SKIPPED: 1}
    assert await offer(broken) == {Count.REJECTED: 1}
    with pytest.raises(DecodeError):
        await intake.offer(b"no frame", "cam0")
    assert entrance.counts[Count.REJECTED] == 2
    assert (len(entrance.samples), len(entrance.acknowledged)) == (2, 2)
    assert entrance.pipeline.preparing == 0


async def test_slots_bound_the_frames_inside_and_fewer_of_them_are_for_sources_that_can_wait(
    entrance: Entrance,
) -> None:
    intake = entrance.intake(inside=2, patient=1)

    def offer(value: int, *, patient: bool) -> asyncio.Task[None]:
        return asyncio.create_task(intake.offer(pack(frame(value)), "cam0", patient=patient))

    async def accepted() -> list[int]:
        await asyncio.sleep(1)
        return [int(sample.frame.data[0]) for sample in entrance.samples]

    offers = [offer(value, patient=value < 3) for value in (1, 2, 3, 4)]
    assert await accepted() == [1, 3], "2 waits for the one patient slot, and 4 for any slot"
    for sample, values in zip(list(entrance.samples), ([1, 3, 4], [1, 3, 4, 2]), strict=True):
        assert sample.patient == (sample is entrance.samples[0])
        intake.release_input(sample)
        intake.leave(sample)
        assert await accepted() == values
    waiting = offer(5, patient=False)
    assert await accepted() == [1, 3, 4, 2]
    intake.leave(entrance.samples[3])
    assert await accepted() == [1, 3, 4, 2, 5]
    cancelled = offer(6, patient=True)
    await asyncio.sleep(1)
    cancelled.cancel()
    await asyncio.sleep(1)
    intake.leave(entrance.samples[2])
    await offer(7, patient=True)
    assert await accepted() == [1, 3, 4, 2, 5, 7], "the patient slot of a cancelled offer is free again"
    await asyncio.gather(*offers, waiting)


async def test_a_prepared_frame_takes_the_memory_of_its_input_until_that_is_released(entrance: Entrance) -> None:
    intake = entrance.intake(pixels=100)
    sample = sample_of(intake, frame(1))
    await intake.prepare(sample)
    assert (intake._memory.used, entrance.loaded._leases, sample.model) == (32, 1, entrance.loaded)
    for _ in range(2):
        intake.release_input(sample)
    assert (intake._memory.used, entrance.loaded._leases, sample.input) == (0, 0, None)


async def test_a_frame_that_grows_too_old_or_fails_while_it_is_prepared_keeps_neither_memory_nor_model(
    entrance: Entrance,
) -> None:
    intake, now = entrance.intake(), asyncio.get_running_loop().time()
    for stale_at in (now, now - 1):
        with pytest.raises(_StaleFrameError):
            await intake.prepare(sample_of(intake, frame(1), stale_at=stale_at))
    with pytest.raises(DecodeError):
        await intake.prepare(sample_of(intake, frame(1, (2, 2, 3))))
    assert (intake._memory.used, entrance.loaded._leases) == (0, 0)
    await intake.prepare(sample_of(intake, frame(1), stale_at=now + 0.001))


@pytest.mark.parametrize(
    ("decision", "peer", "running", "here"),
    [
        (None, None, True, True),
        (AUDIT, None, True, True),
        (UP, None, True, False),
        (None, "", True, True),
        (None, "e1", True, False),
        (None, "e1", False, True),
    ],
)
async def test_a_frame_is_prepared_unless_the_next_tier_or_a_peer_gets_it(
    entrance: Entrance, *, decision: UploadDecision | None, peer: str | None, running: bool, here: bool
) -> None:
    intake = entrance.intake()
    entrance.pipeline.running = running
    entrance.pipeline.peers = None if peer is None else SimpleNamespace(reserve_peer=lambda: peer or None)
    assert intake._is_for_model(sample_of(intake, frame(1), decision=decision)) is here


def user_miner(_: Prediction, /) -> bool:
    return False


@pytest.mark.parametrize(
    ("miner", "shape", "in_thread"),
    [(EdgeOnly(), (256, 256), False), (EdgeOnly(), (1, 65_537), True), (user_miner, (2, 2), True)],
)
async def test_a_frame_is_mined_on_the_event_loop_only_if_it_is_small_and_the_miner_ours(
    entrance: Entrance, monkeypatch: pytest.MonkeyPatch, *, miner: Miner, shape: tuple[int, ...], in_thread: bool
) -> None:
    calls: list[Callable[..., Any]] = []

    async def call(work: Callable[..., Any], *args: Any) -> Any:
        calls.append(work)
        return work(*args)

    monkeypatch.setattr(entrance.thread, "call", call)
    intake = entrance.intake()
    await intake._mine(sample_of(intake, frame(1, shape)), miner)
    assert bool(calls) is in_thread


@pytest.mark.parametrize("escalation", [True, False])
@pytest.mark.parametrize("decision", [UP, None])
async def test_a_frame_that_is_dropped_undoes_its_decision_and_is_acknowledged(
    entrance: Entrance, *, escalation: bool, decision: UploadDecision | None
) -> None:
    intake = entrance.intake(escalation=escalation, inside=1)
    await intake.offer(pack(frame(1)), "cam0")
    (sample,) = entrance.samples
    sample.decision = decision
    intake.expire(sample, hopeless=False)
    assert entrance.forgotten == ([decision] if escalation and decision else [])
    assert (entrance.acknowledged, entrance.counts[Count.SKIPPED]) == ([sample.frame.id], 1)
    assert (intake._memory.used, entrance.loaded._leases) == (0, 0)
    await intake.offer(pack(frame(2)), "cam0")


async def test_the_times_of_a_frame_are_those_of_its_arrival_its_slot_and_its_preparation(
    entrance: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(1.0)
    time = SimpleNamespace(monotonic=lambda: next(clock), time_ns=lambda: 1)
    monkeypatch.setattr("halimede.pipeline.intake.time", time)
    body = msgspec.structs.replace(frame(1), camera="cam1")
    await entrance.intake().offer(pack(body), "cam1")
    (sample,) = entrance.samples
    assert sample.trace.steps == [(RECEIVE, 1.0, 2.0, "cam1", 4, "raw", ""), (DECODE, 2.0, 3.0, 1)]
    assert (sample.queued, entrance.times.decode.total, entrance.times.decode.count) == (3.0, 1000.0, 1)


def test_the_usual_limits_of_frames_are_these() -> None:
    usual = EdgeLimits(
        inside=96, patient=16, pixels=67_108_864, batch=16, horizon_s=0.05, remembered=65_536, max_age_s=math.inf
    )
    assert EdgeLimits() == usual
