"""A worker that may ask a next tier answers every sample once, in time, and says whose answer it is."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Frame, Load, Prediction, Reply
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.intake import RequestLimits
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.pipeline.workers import RequestWorker
from halimede.stats.ledger import Ledger
from halimede.topic import Filter
from halimede.tracing import FrameRecord
from tests.simulated import eventually, simulated
from tests.unit.frames.clouds import BAD, NS, SERVICE, Brightness, cloud_bus, frame

#: what is at least as bright is hard
HARD = 50
BEYOND = Prediction(label="beyond", score=1.0)


def is_hard(prediction: Prediction) -> bool:
    return int(prediction.label or "0") >= HARD


@dataclass
class Next:
    """A next tier that says what a test tells it, after so many seconds of the time that it is given."""

    answer_s: float = 0.1
    fails: Exception | None = None
    policy: UploadPolicy | None = None
    untils: list[float] = field(default_factory=list)
    asked: list[Prediction | None] = field(default_factory=list)
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        assert trace is not None
        until = asyncio.get_running_loop().time() + deadline_s
        self.untils.append(until)
        self.asked.append(frame.edge)
        if self.fails:
            raise self.fails
        try:
            async with asyncio.timeout_at(until):
                waited = asyncio.create_task(self.abandoned.wait())
                await asyncio.wait([waited], timeout=self.answer_s)
                waited.cancel()
        except TimeoutError:
            raise OffloadError(OffloadReason.DEADLINE) from None
        if self.abandoned.is_set():
            raise OffloadError(OffloadReason.DEADLINE)
        return Reply(id=frame.id, worker="next0", prediction=BEYOND, model="v9", tier="cloud")

    def abandon(self) -> None:
        self.abandoned.set()


@dataclass
class World:
    """One server of the tier `gate`, and who asks it."""

    server: RequestWorker
    edge: MemoryBus
    broker: MemoryBroker
    model: Brightness
    replies: list[Reply] = field(default_factory=list)
    #: when each came, by the loop's clock
    came: list[float] = field(default_factory=list)

    async def send(self, body: Frame, deadline_ms: float = 2000) -> Frame:
        address = topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="g0")
        body = msgspec.structs.replace(body, deadline_ms=deadline_ms)
        answers = topics.REPLY.at(ns=NS, service=SERVICE, worker="e0")
        await self.edge.publish(address, body, reply_to=answers, correlation=b"c")
        return body

    async def ask(self, value: int, deadline_ms: float = 2000) -> Reply:
        before = len(self.replies)
        await self.send(frame(value), deadline_ms)
        await eventually(lambda: len(self.replies) > before)
        return self.replies[-1]

    @property
    def load(self) -> Load:
        return self.server.intake.load()


@contextlib.asynccontextmanager
async def serving(beyond: Next, limits: RequestLimits | None = None) -> AsyncIterator[World]:
    broker, model = MemoryBroker(), Brightness()
    async with (
        cloud_bus(broker, "g0") as bus,
        MemoryBus("e0", broker) as edge,
        ModelThread() as thread,
        contextlib.AsyncExitStack() as files,
        asyncio.TaskGroup() as group,
    ):
        folder = files.enter_context(tempfile.TemporaryDirectory())
        ledger = files.enter_context(Ledger(Path(folder), "u-1"))
        channel = inference(NS, SERVICE, "g0", tier="gate")
        server = RequestWorker(
            bus,
            ModelSlot(LoadedModel(model, thread)),
            channel,
            limits=limits,
            escalation=Escalation(beyond, ledger, policy=beyond.policy),
            miner=is_hard,
            ledger=ledger,
        )
        running = group.create_task(server.run())
        await edge.wait_connected(1)
        world = World(server, edge, broker, model)

        async def keep(delivery: Delivery[Reply]) -> None:
            world.replies.append(delivery.body)
            world.came.append(asyncio.get_running_loop().time())

        address = topics.REPLY.at(ns=NS, service=SERVICE, worker="e0")
        await edge.subscribe(Filter(topics.REPLY, address.text), keep)
        await asyncio.sleep(0.1)
        yield world
        running.cancel()


def scene(beyond: Next, limits: RequestLimits | None = None) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    """Run a body against a server that asks ``beyond``, in simulated time."""

    def run(body: Callable[[World], Awaitable[None]]) -> None:
        @simulated
        async def play() -> None:
            async with serving(beyond, limits) as world:
                await body(world)

        play()

    return run


def test_easy_samples_are_answered_here_and_hard_ones_by_the_next_tier() -> None:
    beyond = Next()

    @scene(beyond)
    async def _(world: World) -> None:
        easy, hard = await world.ask(1), await world.ask(HARD)
        assert (easy.tier, easy.by, easy.worker, easy.reason) == ("gate", "", "g0", "")
        assert (hard.tier, hard.by, hard.worker, hard.model) == ("cloud", "next0", "g0", "v9")
        assert hard.prediction == BEYOND
        assert beyond.asked == [Prediction(label=str(HARD), score=1.0)]
        assert world.server.intake.stats.served == 2


def test_its_batches_go_on_while_the_next_tier_is_asked() -> None:
    @scene(Next(answer_s=1.5))
    async def _(world: World) -> None:
        await world.send(frame(HARD))
        assert (await world.ask(1)).tier == "gate"
        assert world.load.queued == 1


def test_a_sample_under_way_counts_against_its_credits() -> None:
    @scene(Next(answer_s=1.0), RequestLimits(queue=2))
    async def _(world: World) -> None:
        for value in (HARD, HARD + 1):
            await world.send(frame(value))
        await eventually(lambda: (world.load.credits, world.load.queued, world.load.tier) == (0, 2, "gate"))
        assert (await world.ask(1)).error == "overloaded"
        await eventually(lambda: len(world.replies) == 3)
        assert world.load.queued == 0


def test_where_nobody_answers_in_time_the_own_answer_goes_back_in_time_and_says_why() -> None:
    beyond = Next(answer_s=60)

    @scene(beyond)
    async def _(world: World) -> None:
        began = asyncio.get_running_loop().time()
        reply = await world.ask(HARD, deadline_ms=500)
        assert (reply.prediction, reply.reason, reply.tier) == (Prediction(label="50", score=1.0), "deadline", "gate")
        assert world.came[0] < began + 0.5, "its asker still waits"
        assert beyond.untils[0] < began + 0.5


def test_each_failure_leaves_the_own_answer_with_its_reason() -> None:
    for failure, reason in ((OffloadError(OffloadReason.NO_CLOUD), "no-cloud"), (RuntimeError("defect"), "error")):

        @scene(Next(fails=failure))
        async def _(world: World, reason: str = reason) -> None:
            reply = await world.ask(HARD)
            assert (reply.prediction and reply.prediction.label, reply.reason, reply.error) == ("50", reason, "")


def test_what_is_withheld_is_answered_here_and_says_why() -> None:
    beyond = Next(policy=UploadPolicy(budget=Budget(0.0)))

    @scene(beyond)
    async def _(world: World) -> None:
        reply = await world.ask(HARD)
        assert (reply.tier, reply.reason, beyond.asked) == ("gate", "budget", [])


def test_what_the_own_model_fails_on_is_the_next_tiers_to_answer() -> None:
    beyond = Next()

    @scene(beyond)
    async def _(world: World) -> None:
        reply = await world.ask(BAD)
        assert (reply.prediction, reply.error, beyond.asked) == (BEYOND, "", [None])


def test_a_failed_sample_that_nobody_else_answers_stays_failed_and_is_quarantined() -> None:
    beyond = Next(fails=OffloadError(OffloadReason.NO_CLOUD))

    @scene(beyond)
    async def _(world: World) -> None:
        bad = frame(BAD)
        errors = []
        for count in (1, 2, 3):
            await world.send(bad)
            await eventually(lambda count=count: len(world.replies) == count)
            errors.append(world.replies[-1].error)
        assert errors == ["failed", "quarantined", "quarantined"]
        assert world.model.batches == [[BAD], [BAD]]


def test_a_frame_that_is_itself_to_blame_bothers_no_next_tier() -> None:
    beyond = Next()

    @scene(beyond)
    async def _(world: World) -> None:
        await world.send(frame(1, (2, 2, 3)))
        await eventually(lambda: len(world.replies) == 1)
        assert (world.replies[0].error, beyond.asked) == ("invalid", [])


def test_a_resend_while_the_next_tier_is_asked_is_asked_about_once() -> None:
    beyond = Next(answer_s=0.5)

    @scene(beyond)
    async def _(world: World) -> None:
        body = await world.send(frame(HARD))
        await eventually(lambda: len(beyond.asked) == 1)
        await world.send(body)
        await eventually(lambda: len(world.replies) == 1)
        await world.send(body)  # after the answer, too: it is remembered
        await eventually(lambda: len(world.replies) == 2)
        assert len(beyond.asked) == 1
        assert {reply.tier for reply in world.replies} == {"cloud"}


def test_a_draining_server_gives_up_waiting_in_the_last_third() -> None:
    beyond = Next(answer_s=60)

    @scene(beyond)
    async def _(world: World) -> None:
        loop = asyncio.get_running_loop()
        await world.send(frame(HARD), deadline_ms=60_000)
        await eventually(lambda: len(beyond.asked) == 1)
        began = loop.time()
        assert await world.server.drain(9)
        assert 5.9 < loop.time() - began < 7
        await eventually(lambda: len(world.replies) == 1)
        assert (world.replies[0].reason, world.replies[0].tier) == ("deadline", "gate")


def test_without_a_next_tier_replies_say_which_tier_answered() -> None:
    @simulated
    async def play() -> None:
        broker = MemoryBroker()
        async with cloud_bus(broker, "c0") as bus, ModelThread() as thread, asyncio.TaskGroup() as group:
            channel = inference(NS, SERVICE, "c0", tier="cloud")
            server = RequestWorker(bus, ModelSlot(LoadedModel(Brightness(), thread)), channel)
            running = group.create_task(server.run())
            await asyncio.sleep(0.1)
            assert server.intake.load().tier == "cloud"
            assert channel.requests[0].text.endswith("/request/c0")
            assert len(channel.requests) == 1, "tiers are asked by name alone"
            running.cancel()

    play()
