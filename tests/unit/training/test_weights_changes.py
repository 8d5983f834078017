"""With compression, trainers fetch the change of the weights, and the whole file where a change cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import BlobRequest, Compression, TensorFile, TrainerState, TrainingRound
from halimede.training import aggregator
from halimede.training.aggregator import Aggregator
from halimede.training.child import carry_out
from halimede.training.child_messages import TrainingResult, TrainingTask
from halimede.training.data import SampleCache
from halimede.training.error_feedback import ErrorFeedback, apply_change
from halimede.training.settings import Program, TrainingSettings
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import decode, encode, encode_update
from halimede.training.trainer_worker import TrainerWorker
from halimede.training.weights import DTYPES, Weights, WeightsError, add, digest_of, specs_of
from halimede.worker.status_reporter import StatusReporter
from tests.simulated import eventually
from tests.training_world import LABELS, shares, write
from tests.unit.training.parties import AGGREGATOR, JOB, NAMES, offer, party_settings

pytestmark = pytest.mark.simulated

TRAINERS = {"n0": "edge0", "n1": "edge1", "n2": "edge2"}
MODEL = {"url": "/none", "format": "onnx", "labels": LABELS}
COMPRESSION = {"dtype": "float16", "topK": 0.25}
SPEC: dict[str, Any] = {"rounds": 5, "minClients": 3, "compression": COMPRESSION, "parameters": {"epochs": "1"}}
#: simulated seconds: of a step, in which something can be killed; for a whole job
STEP_S, LONG = 1.0, 600.0


def settings(program: Program, name: str, folder: Path, spec: dict[str, Any]) -> TrainingSettings:
    training = {"trainers": TRAINERS, **spec}
    return party_settings(program, name, folder / name, folder / f"{name}.npz", training, labels=LABELS)


async def run_step(settings: TrainingSettings, do: Any, **more: Any) -> TrainingResult:
    """Run a step in this process, instead of in a child process, and on the loop, so that steps never overlap.

    NumPy parses a file's header with ``ast``, which Python 3.11.7 cannot do in two threads at once (gh-106905).
    """
    task = TrainingTask(
        do=do, entry="Perceptron", parameters=settings.job.parameters, model_spec=json.dumps(MODEL),
        data=str(settings.data), memory_bytes=2**31, seconds=60, clock_s=60, written_bytes=2**31, **more,
    )  # fmt: skip
    return carry_out(task, SampleCache())


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aggregator, "run_step", run_step)
    for name, share in zip(TRAINERS, shares(3, 60), strict=True):
        write(tmp_path / f"{name}.npz", *share)


class World:
    """A job in simulated time: its parties, and which files of the aggregator each trainer requested in each round."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder, self.spec = folder, {**SPEC, **spec}
        self.broker = MemoryBroker()
        self.rounds: dict[int, TrainingRound] = {}
        self.states: dict[str, TrainerState] = {}
        self.requests: dict[int, Counter[tuple[str, str]]] = {}
        self._transfers: set[bytes] = set()
        self.last: TrainingRound | None = None
        self.tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def observed(self) -> AsyncIterator[MemoryBus]:
        async def round_(delivery: Delivery[TrainingRound]) -> None:
            self.last = delivery.body
            if delivery.body.state == "open":
                self.rounds[delivery.body.number] = delivery.body

        async def state(delivery: Delivery[TrainerState]) -> None:
            self.states[delivery.names["trainer"]] = delivery.body

        async def request(delivery: Delivery[BlobRequest]) -> None:
            ticket = delivery.packet.correlation
            if delivery.names["source"] == AGGREGATOR and self.last and ticket not in self._transfers:
                self._transfers.add(ticket)
                found = self.requests.setdefault(self.last.number, Counter())
                found[delivery.names["asker"], delivery.body.digest] += 1

        async with MemoryBus("observer", self.broker) as bus:
            await bus.subscribe(topics.TRAINING_ROUND.filter(**NAMES), round_)
            await bus.subscribe(topics.TRAINER_STATE.filter(**NAMES), state)
            await bus.subscribe(topics.TRAINING_REQUEST.filter(**NAMES), request)
            try:
                yield bus
            finally:
                for task in self.tasks:
                    await end(task)

    def start(self, **steps: Any) -> asyncio.Task[None]:
        """Start all parties, some trainers with steps of their own; return the aggregator."""
        for name in TRAINERS:
            self.trainer(name, steps.get(name))
        return self.aggregator()

    def aggregator(self) -> asyncio.Task[None]:
        return self._start("aggregator", AGGREGATOR, Aggregator)

    def trainer(self, name: str, step: Any = None) -> asyncio.Task[None]:
        made = settings("trainer", name, self.folder, self.spec)

        async def own(do: Any, **more: Any) -> TrainingResult:
            await asyncio.sleep(STEP_S)
            return await run_step(made, do, **more)

        return self._start("trainer", name, lambda *parts: TrainerWorker(*parts, step=step or own))

    def _start(self, program: Program, name: str, make: Callable[..., Any]) -> asyncio.Task[None]:
        made = settings(program, name, self.folder, self.spec)

        async def run() -> None:
            async with MemoryBus(name, self.broker) as bus:
                await make(made, bus, StatusReporter(bus, made.worker)).run(lambda: None, asyncio.Event())

        task = asyncio.create_task(run(), name=name)
        self.tasks.append(task)
        return task

    async def until(self, condition: Callable[[TrainingRound], bool]) -> TrainingRound:
        def holds() -> bool:
            for task in self.tasks:
                if task.done() and not task.cancelled():
                    task.result()
            return self.last is not None and condition(self.last)

        await eventually(holds, LONG)
        return self.last

    async def done(self) -> TrainingRound:
        return await self.until(lambda body: body.state == "done")


async def end(task: asyncio.Task[None]) -> None:
    """End a party as a kill does: it publishes nothing more."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def another(folder: Path) -> Path:
    """Return a folder with the same samples, for a second job."""
    (folder / "another").mkdir()
    for name in TRAINERS:
        shutil.copy(folder / f"{name}.npz", folder / "another")
    return folder / "another"


async def run_job(folder: Path, **spec: Any) -> World:
    """Return the world after a job that nobody interrupts."""
    world = World(folder, **spec)
    async with world.observed():
        world.start()
        await world.done()
    return world


async def test_trainers_fetch_whole_weights_once_and_then_only_changes(tmp_path: Path) -> None:
    world = await run_job(tmp_path)
    for number, body in world.rounds.items():
        assert body.weights is not None
        if number == 1:
            assert body.change is None
            assert world.requests[number] == dict.fromkeys([(name, body.weights.digest) for name in TRAINERS], 1)
        else:
            before = world.rounds[number - 1].weights
            assert body.base == before.digest
            assert body.change.size * 5 < body.weights.size
            assert world.requests[number] == dict.fromkeys([(name, body.change.digest) for name in TRAINERS], 1)
    assert sorted(world.rounds) == [1, 2, 3, 4, 5, 6]
    assert not world.last.dropped


async def test_a_round_trains_on_the_samples_that_are_there_at_its_begin(tmp_path: Path) -> None:
    world, began_ns = World(tmp_path, rounds=2), time.time_ns()
    limits: list[tuple[str, int | None, int]] = []

    async def step(do: Any, **more: Any) -> TrainingResult:
        limits.append((do, more.get("until_ns"), time.time_ns()))
        return await run_step(settings("trainer", "n0", tmp_path, world.spec), do, **more)

    async with world.observed():
        world.start(n0=step)
        await world.done()
    assert [do for do, until_ns, _ in limits if until_ns is None] == ["describe"]
    assert {"train", "evaluate"} <= {do for do, _, _ in limits}
    assert all(began_ns <= until_ns <= now_ns for _, until_ns, now_ns in limits if until_ns is not None)


async def test_without_compression_there_is_no_change(tmp_path: Path) -> None:
    world = await run_job(tmp_path, compression={}, rounds=2)
    for number, body in world.rounds.items():
        assert body.weights is not None
        assert body.change is None
        assert "change" not in msgspec.to_builtins(body)
        assert world.requests[number] == dict.fromkeys([(name, body.weights.digest) for name in TRAINERS], 1)


async def test_a_trainer_that_missed_a_round_fetches_the_whole_weights(tmp_path: Path) -> None:
    world = await run_job(tmp_path, clientsPerRound=2, minClients=2, rounds=8)
    held: set[str] = set()
    fetched = {"whole": 0, "change": 0}
    for number, body in sorted(world.rounds.items()):
        assert body.weights is not None
        for name in body.invited:
            file = body.change if name in held else body.weights
            assert world.requests[number][name, file.digest] == 1
            fetched["change" if name in held else "whole"] += 1
        assert world.requests[number].total() == len(body.invited)
        held = set(body.invited)
    assert fetched["whole"] > 3
    assert fetched["change"] > 3


async def test_a_killed_trainer_fetches_the_whole_weights_and_makes_the_same_update(tmp_path: Path) -> None:
    expected = (await run_job(another(tmp_path))).last
    world = World(tmp_path)
    async with world.observed():
        parties = [world.trainer(name) for name in TRAINERS]
        world.aggregator()
        await world.until(lambda body: body.number == 3)
        await end(parties[1])
        world.trainer("n1")
        done = await world.done()
    whole = world.rounds[3].weights
    assert world.requests[3]["n1", whole.digest] == 1
    assert done.weights == expected.weights
    assert done.metrics == expected.metrics


async def test_what_a_change_leaves_out_reaches_the_trainers_in_later_rounds(tmp_path: Path) -> None:
    world = World(tmp_path, rounds=6, parameters={"hidden": ""})
    largest = {"n0": (0, 1.0), "n1": (3, 0.5), "n2": (6, 0.25)}

    def always(name: str) -> Any:
        """Return a step that always moves three values: as many as a change of ten values has."""

        async def step(do: Any, **more: Any) -> TrainingResult:
            await asyncio.sleep(STEP_S)
            found = TrainingResult(samples=50, held_out=10, shape=[64], evaluation={"accuracy": 0.5})
            if do == "train":
                delta = {spec.name: np.zeros(spec.shape, np.float32) for spec in more["specs"]}
                first, value = largest[name]
                delta["layer0.bias"][first : first + 3] = value
                found.content = encode(delta)
            return found

        return step

    async with world.observed():
        world.start(**{name: always(name) for name in TRAINERS})
        done = await world.done()
    content = (tmp_path / AGGREGATOR / "training" / done.weights.digest).read_bytes()
    bias = decode(content, done.specs)["layer0.bias"]
    assert (bias[:9] > 0).all()
    assert bias[9] == 0


@pytest.mark.parametrize("number", [1, 2, 4, 6])
async def test_a_killed_aggregator_continues_with_the_same_weights_and_changes(tmp_path: Path, number: int) -> None:
    expected = await run_job(another(tmp_path))
    world = World(tmp_path)
    async with world.observed():
        first = world.start()
        await world.until(lambda body: body.number == number and body.state == "open")
        await end(first)
        world.aggregator()
        done = await world.done()
    assert done.epoch == 2
    assert {n: (body.weights, body.change) for n, body in world.rounds.items()} == {
        n: (body.weights, body.change) for n, body in expected.rounds.items()
    }
    assert done.model == expected.last.model
    # trainers that have the weights of the repeated round fetch nothing
    assert all(count == 1 for requests in world.requests.values() for count in requests.values())


# --- one trainer, and an aggregator that this test is ---------------------------------------------------------------


class FakeAggregator:
    """Publishes two rounds with weights of the test's own, and serves their files."""

    def __init__(self, world: World, bus: MemoryBus) -> None:
        self.world, self.bus = world, bus
        self.exchange = TensorExchange(bus, "default", JOB, AGGREGATOR)
        random = np.random.default_rng(0)
        shapes = {"layer0.weight": (64, 10), "layer0.bias": (10,)}
        self.first = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
        delta = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
        compression = msgspec.convert(COMPRESSION, Compression)
        self.second, self.change = ErrorFeedback(compression).advance(self.first, add(self.first, delta))
        self.delta = delta
        self.offer = functools.partial(offer, self.exchange, world.folder)

    async def open(self, number: int, weights: Weights, **more: Any) -> None:
        """Open a round, and wait until the trainer has an update for it."""
        body = TrainingRound(
            job="u-1", epoch=1, number=number, state="open", source=AGGREGATOR, weights=self.offer(encode(weights)),
            specs=specs_of(weights), invited=["n0"], compression=msgspec.convert(COMPRESSION, Compression), **more,
        )  # fmt: skip
        await self.bus.publish(topics.TRAINING_ROUND.at(**NAMES), body)
        await eventually(lambda: self.world.states["n0"].number == number, LONG)
        assert self.world.states["n0"].update is not None


COARSE = Compression(dtype="float16")
#: changes that must not be used
BAD: dict[str, Callable[[FakeAggregator], TensorFile]] = {
    "other-bytes": lambda fake: fake.offer(fake.change, served=fake.change[:-1] + b"x"),
    "other-size": lambda fake: fake.offer(fake.change, served=fake.change + b"x"),
    "garbage": lambda fake: fake.offer(b"HALTENS1" + bytes(300)),
    "shape": lambda fake: fake.offer(encode_update({name: t[:5] for name, t in fake.delta.items()}, COARSE)),
    "type": lambda fake: fake.offer(encode({name: t.astype(np.int32) for name, t in fake.delta.items()})),
    "not-finite": lambda fake: fake.offer(encode({name: np.full_like(t, np.nan) for name, t in fake.delta.items()})),
    "other-result": lambda fake: fake.offer(encode_update(fake.delta, COARSE)),
    "huge": lambda fake: TensorFile(digest=digest_of(fake.change), size=2**50),
    "not-served": lambda _: TensorFile(digest=digest_of(b"nothing"), size=300),
    "other-base": lambda fake: fake.offer(fake.change),
}


async def trained(folder: Path, kind: str) -> tuple[list[str], TrainerState]:
    """Return what a trainer fetched for a round with a change of a kind, and its update."""
    world = World(folder, parameters={"hidden": "", "epochs": "1"})
    async with world.observed() as observer, MemoryBus(AGGREGATOR, world.broker) as bus:
        fake = FakeAggregator(world, bus)
        await fake.exchange.start()
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(fake.exchange.serve())
            world.trainer("n0")
            await eventually(lambda: "n0" in world.states and world.states["n0"].samples, LONG)
            await fake.open(1, fake.first)
            change = BAD.get(kind, BAD["other-base"])(fake)
            base = b"weights that the trainer does not have" if kind == "other-base" else encode(fake.first)
            await fake.open(2, fake.second, change=change, base=digest_of(base))
            serving.cancel()
        assert observer.connected
        names = {digest_of(encode(fake.second)): "whole", change.digest: "change"}
        return [names[digest] for _, digest in world.requests[2]], world.states["n0"]


async def test_a_change_makes_the_same_update_as_the_whole_weights(tmp_path: Path) -> None:
    fetched, state = await trained(tmp_path, "good")
    assert fetched == ["change"]
    whole, expected = await trained(another(tmp_path), "other-base")
    assert whole == ["whole"]
    assert state.update == expected.update
    assert state.evaluation == expected.evaluation


@pytest.mark.parametrize("kind", BAD)
async def test_a_change_that_cannot_be_used_costs_only_the_whole_file(tmp_path: Path, kind: str) -> None:
    fetched, state = await trained(tmp_path, kind)
    assert fetched == (["whole"] if kind in {"huge", "other-base"} else ["change", "whole"])
    _, expected = await trained(another(tmp_path), "good")
    assert state.update == expected.update


# --- changes of any weights -----------------------------------------------------------------------------------------

SHAPES = arrays.array_shapes(min_dims=0, max_dims=2, max_side=12)
FLOATS = st.floats(-100, 100, width=16)


@st.composite
def two_weights(draw: st.DrawFn) -> tuple[Weights, Weights]:
    """Return weights of any types and shapes, and others of the same ones."""
    pair: tuple[Weights, Weights] = ({}, {})
    for name in draw(st.lists(st.text("abc", min_size=1), min_size=1, max_size=3, unique=True)):
        dtype, shape = np.dtype(draw(st.sampled_from(sorted(DTYPES)))), draw(SHAPES)
        for weights in pair:
            elements = FLOATS if dtype.kind == "f" else None
            weights[name] = draw(arrays.arrays(dtype, shape, elements=elements))
    return pair


@given(two_weights(), st.builds(Compression, dtype=st.sampled_from(["float32", "float16"]), top_k=st.floats(0.001, 1)))
def test_both_parties_make_the_same_weights_of_a_change(
    pair: tuple[Weights, Weights], compression: Compression
) -> None:
    weights, aggregated = pair
    feedback = ErrorFeedback(compression)
    for _ in range(3):
        before = encode(weights)
        weights, change = feedback.advance(weights, aggregated)
        assert apply_change(before, change, specs_of(weights), digest_of(encode(weights))) == encode(weights)
        with pytest.raises(WeightsError):
            apply_change(before, change, specs_of(weights), digest_of(b"others"))
    for name, tensor in weights.items():
        if tensor.dtype.kind != "f":
            assert np.array_equal(tensor, aggregated[name])
