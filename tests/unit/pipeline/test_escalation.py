"""A worker that may ask a next tier answers every sample once, in time, and says whose answer it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

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
from tests.simulated import eventually
from tests.unit.frames.clouds import BAD, NS, SERVICE, Brightness, cloud_bus, frame
from tests.worlds import connected

pytestmark = pytest.mark.simulated

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
        self.untils.append(asyncio.get_running_loop().time() + deadline_s)
        self.asked.append(frame.edge)
        if self.fails:
            raise self.fails
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self.answer_s, deadline_s)):
                await self.abandoned.wait()
        if self.abandoned.is_set() or self.answer_s > deadline_s:
            raise OffloadError(OffloadReason.DEADLINE)
        return Reply(id=frame.id, worker="next0", prediction=BEYOND, model="v9", tier="cloud")

    def abandon(self) -> None:
        self.abandoned.set()


@dataclass
class World:
    """One server of the tier `gate`, and who asks it."""

    server: RequestWorker
    edge: MemoryBus
    model: Brightness
    replies: list[Reply] = field(default_factory=list)
    #: when each came, by the loop's clock
    came: list[float] = field(default_factory=list)

    async def hear(self, delivery: Delivery[Reply]) -> None:
        self.replies.append(delivery.body)
        self.came.append(asyncio.get_running_loop().time())

    async def send(self, body: Frame, deadline_ms: float = 2000) -> Frame:
        address = topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="g0")
        body = msgspec.structs.replace(body, deadline_ms=deadline_ms)
        answers = topics.REPLY.at(ns=NS, service=SERVICE, worker="e0")
        await self.edge.publish(address, body, reply_to=answers, correlation=b"c")
        return body

    async def ask(self, body: Frame, deadline_ms: float = 2000) -> Reply:
        before = len(self.replies)
        await self.send(body, deadline_ms)
        await eventually(lambda: len(self.replies) > before)
        return self.replies[-1]

    @property
    def load(self) -> Load:
        return self.server.intake.load()


@contextlib.asynccontextmanager
async def serving(folder: Path, beyond: Next, limits: RequestLimits | None = None) -> AsyncIterator[World]:
    """A server that asks ``beyond``."""
    broker, model, channel = MemoryBroker(), Brightness(), inference(NS, SERVICE, "g0", tier="gate")
    with Ledger(folder, "u-1") as ledger:
        async with (
            cloud_bus(broker, "g0") as bus,
            connected(MemoryBus("e0", broker)) as edge,
            ModelThread() as thread,
            asyncio.TaskGroup() as group,
        ):
            escalation = Escalation(beyond, ledger, policy=beyond.policy)
            server = RequestWorker(
                bus,
                ModelSlot(LoadedModel(model, thread)),
                channel,
                limits=limits,
                escalation=escalation,
                miner=is_hard,
                ledger=ledger,
            )
            running = group.create_task(server.run())
            world = World(server, edge, model)
            address = topics.REPLY.at(ns=NS, service=SERVICE, worker="e0")
            await edge.subscribe(Filter(topics.REPLY, address.text), world.hear)
            await asyncio.sleep(0.1)
            yield world
            running.cancel()


async def test_easy_samples_are_answered_here_and_hard_ones_by_the_next_tier(tmp_path: Path) -> None:
    beyond = Next()
    async with serving(tmp_path, beyond) as world:
        easy, hard = await world.ask(frame(1)), await world.ask(frame(HARD))
        assert (easy.tier, easy.by, easy.worker, easy.reason) == ("gate", "", "g0", "")
        assert (hard.tier, hard.by, hard.worker, hard.model) == ("cloud", "next0", "g0", "v9")
        assert hard.prediction == BEYOND
        assert beyond.asked == [Prediction(label=str(HARD), score=1.0)]
        assert world.server.intake.stats.served == 2


async def test_its_batches_go_on_while_the_next_tier_is_asked(tmp_path: Path) -> None:
    async with serving(tmp_path, Next(answer_s=1.5)) as world:
        await world.send(frame(HARD))
        assert (await world.ask(frame(1))).tier == "gate"
        assert world.load.queued == 1


async def test_a_sample_under_way_counts_against_its_credits(tmp_path: Path) -> None:
    async with serving(tmp_path, Next(answer_s=1.0), RequestLimits(queue=2)) as world:
        for value in (HARD, HARD + 1):
            await world.send(frame(value))
        await eventually(lambda: (world.load.credits, world.load.queued, world.load.tier) == (0, 2, "gate"))
        assert (await world.ask(frame(1))).error == "overloaded"
        await eventually(lambda: len(world.replies) == 3)
        assert world.load.queued == 0


@pytest.mark.parametrize(
    ("beyond", "reason"),
    [
        (Next(fails=OffloadError(OffloadReason.NO_CLOUD)), "no-cloud"),
        (Next(fails=RuntimeError("defect")), "error"),
        (Next(policy=UploadPolicy(budget=Budget(0.0))), "budget"),
    ],
    ids=["nobody", "a defect", "withheld"],
)
async def test_each_failure_leaves_the_own_answer_with_its_reason(tmp_path: Path, beyond: Next, reason: str) -> None:
    async with serving(tmp_path, beyond) as world:
        reply = await world.ask(frame(HARD))
        assert (reply.prediction and reply.prediction.label, reply.reason, reply.error) == ("50", reason, "")
        assert (reply.tier, len(beyond.asked)) == ("gate", 0 if beyond.policy else 1)


async def test_what_the_own_model_fails_on_is_the_next_tiers_to_answer(tmp_path: Path) -> None:
    beyond = Next()
    async with serving(tmp_path, beyond) as world:
        reply = await world.ask(frame(BAD))
        assert (reply.prediction, reply.error, beyond.asked) == (BEYOND, "", [None])


async def test_a_failed_sample_that_nobody_else_answers_stays_failed_and_is_quarantined(tmp_path: Path) -> None:
    async with serving(tmp_path, Next(fails=OffloadError(OffloadReason.NO_CLOUD))) as world:
        bad = frame(BAD)
        assert [(await world.ask(bad)).error for _ in range(3)] == ["failed", "quarantined", "quarantined"]
        assert world.model.batches == [[BAD], [BAD]]


async def test_a_frame_that_is_itself_to_blame_bothers_no_next_tier(tmp_path: Path) -> None:
    beyond = Next()
    async with serving(tmp_path, beyond) as world:
        assert ((await world.ask(frame(1, (2, 2, 3)))).error, beyond.asked) == ("invalid", [])


async def test_a_resend_while_the_next_tier_is_asked_is_asked_about_once(tmp_path: Path) -> None:
    beyond = Next(answer_s=0.5)
    async with serving(tmp_path, beyond) as world:
        body = await world.send(frame(HARD))
        await eventually(lambda: len(beyond.asked) == 1)
        await world.ask(body)
        await world.ask(body)  # after the answer, too: it is remembered
        assert len(beyond.asked) == 1
        assert [reply.tier for reply in world.replies] == ["cloud", "cloud"]


async def test_a_draining_server_gives_up_waiting_in_the_last_third(tmp_path: Path) -> None:
    beyond, loop = Next(answer_s=60), asyncio.get_running_loop()
    async with serving(tmp_path, beyond) as world:
        await world.send(frame(HARD), deadline_ms=60_000)
        await eventually(lambda: len(beyond.asked) == 1)
        began = loop.time()
        assert await world.server.drain(9)
        assert 5.9 < loop.time() - began < 7
        await eventually(lambda: len(world.replies) == 1)
        assert (world.replies[0].reason, world.replies[0].tier) == ("deadline", "gate")
        await world.send(frame(1))
        await asyncio.sleep(1)
        assert len(world.replies) == 1, "it has unsubscribed from requests"


async def test_without_a_next_tier_replies_say_which_tier_answered(thread: ModelThread) -> None:
    channel = inference(NS, SERVICE, "c0", tier="cloud")
    server = RequestWorker(MemoryBus("c0", MemoryBroker()), ModelSlot(LoadedModel(Brightness(), thread)), channel)
    assert server.intake.load().tier == "cloud"
    assert channel.requests[0].text.endswith("/request/c0")
    assert len(channel.requests) == 1, "tiers are asked by name alone"
