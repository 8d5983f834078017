"""Joints are users' own code: whatever one does, its worker goes on, every other finding is answered, and it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence

import numpy as np
import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame
from halimede.messages import Box, Fused, Prediction, Reply, Sighting, Track
from halimede.multiedge import joint_server
from halimede.multiedge.joint_server import JointServer
from halimede.multiedge.stage import Finding, Joint, JointTools, Outcome, Parameters
from halimede.offload.channel import hop
from halimede.pipeline.executor import ModelStuckError, ModelThread
from tests.inbox import Inbox
from tests.simulated import eventually

NS, SERVICE = "default", "lobby"
HANGS_S = 15
SIGHTING = Sighting(camera="c", time=0.0, box=Box(0, 0, 1, 1, 1.0), frame="0" * 32)


class Awkward(Joint):
    """Does what a finding's label says."""

    def __init__(self) -> None:
        super().__init__(JointTools(Parameters({}), None))  # type: ignore[arg-type]  # it keeps nothing
        self.calls: list[str] = []
        self.spoilt = ""
        self.hangs = threading.Event()

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        answers: dict[bytes, Prediction | None] = {}
        fused = []
        for finding in findings:
            label = finding.prediction.label
            if label == "hang":
                self.hangs.wait(2 * HANGS_S)
            elif label == "spoil":
                self.spoilt = "due"
            elif label == "fuse":
                fused.append(Fused(instant=7.0, rule="vote"))
            if label == "unwritable":
                answers[finding.key] = Prediction(value=object())
                fused.append(Fused(instant=0.0, rule="vote", value=object()))
            elif label != "forget":
                answers[finding.key] = Prediction(label="said")
        return Outcome(answers, fused=fused)

    def due(self, now: float) -> Outcome:
        self.calls.append("due")
        if self.spoilt == "due":
            raise RuntimeError("due")
        return Outcome()

    def next_due(self) -> float | None:
        if self.spoilt == "next":
            raise RuntimeError("next")
        return 0.0 if self.spoilt == "due" else None

    def follow(self, tracks: Sequence[Track]) -> None:
        raise ValueError("a vector of another length")

    def snapshot(self) -> Iterator[Track]:
        yield Track(identity="one", sighting=SIGHTING)
        raise ValueError("the gallery is broken")

    def close(self) -> None:
        self.calls.append("close")


class Desk:
    """A joint at work on a broker in memory, and one that asks it."""

    def __init__(self, joint: Awkward, joining_: JointServer, asker: MemoryBus, task: asyncio.Task[None]) -> None:
        self.joint, self.joining, self.task, self.asker = joint, joining_, task, asker
        self.replies: dict[bytes, Reply] = {}
        self._to = hop(NS, SERVICE, "join", "e")

    async def send(self, label: str, *, deadline_ms: float = 1000, padding: int = 0) -> bytes:
        frame = new_frame(np.zeros(1, np.uint8))
        frame.deadline_ms, frame.edge = deadline_ms, Prediction(label=label, embeddings=b"\0" * padding)
        address = self._to.to("j")
        assert address
        await self.asker.publish(address, frame, reply_to=self._to.answers, correlation=frame.id)
        return frame.id

    async def answer(self, id_: bytes) -> Reply:
        await eventually(lambda: id_ in self.replies or self.task.done())
        return self.replies[id_]

    async def answers_others(self) -> bool:
        return (await self.answer(await self.send("good"))).prediction.label == "said"


@contextlib.asynccontextmanager
async def desk(limit_s: float = 60.0) -> AsyncIterator[Desk]:
    broker = MemoryBroker()
    joint = Awkward()
    channel = hop(NS, SERVICE, "join", "j")
    async with MemoryBus("j", broker) as bus, MemoryBus("e", broker) as asker, ModelThread("joint") as thread:
        await bus.wait_connected(1)
        await asker.wait_connected(1)
        answers = {"decides": lambda: True, "changed": lambda: None, "node_of": lambda worker: worker}
        made = JointServer(bus, joint, channel, thread, **answers, limit_s=limit_s)
        task = asyncio.create_task(made.run())
        it = Desk(joint, made, asker, task)

        async def replied(delivery) -> None:
            it.replies[delivery.packet.correlation] = delivery.body

        await asker.subscribe(topics.HOP_REPLY.filter(ns=NS, service=SERVICE, hop="join", worker="e"), replied)
        await asyncio.sleep(0.1)
        try:
            yield it
        finally:
            joint.hangs.set()
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.simulated
async def test_an_answer_that_cannot_be_written_fails_alone_and_what_is_fused_is_published() -> None:
    async with desk() as d:
        fused: Inbox[Fused] = Inbox()
        await d.asker.subscribe(topics.FUSED.filter(), fused)
        bad = await d.send("unwritable")
        await d.answer(await d.send("fuse"))
        await eventually(lambda: fused.read(lambda body: body.instant) == [7.0])
        assert await d.answers_others()
        assert (await d.answer(bad)).error == "failed"
        assert (await d.answer(await d.send("unwritable"))).error == "failed"


@pytest.mark.simulated
async def test_decisions_that_cannot_be_followed_and_a_gallery_that_cannot_be_told_stop_nobody() -> None:
    async with desk() as d:
        address = topics.TRACK.at(ns=NS, service=SERVICE)
        await d.asker.publish(address, Track(identity="one", sighting=SIGHTING, embedding=b"x" * 7))
        await asyncio.sleep(0.1)
        assert not await d.joining.send_state("other")
        assert await d.answers_others()


@pytest.mark.simulated
async def test_a_joint_that_fails_at_what_is_due_is_not_asked_without_a_pause() -> None:
    async with desk() as d:
        await d.answer(await d.send("spoil"))
        before = len(d.joint.calls)
        await asyncio.sleep(10)
        assert 1 <= len(d.joint.calls) - before <= 20
        assert await d.answers_others()
        d.joint.spoilt = "next"
        await asyncio.sleep(2)
        assert await d.answers_others()


@pytest.mark.simulated
async def test_findings_that_a_joint_forgets_take_no_place_for_ever() -> None:
    async with desk() as d:
        for _ in range(joint_server.CAPACITY):
            await d.send("forget")
        await eventually(lambda: d.joining.load().credits == 0)
        assert (await d.answer(await d.send("good"))).error == "overloaded"
        await asyncio.sleep(3)
        assert d.joining.load().credits == joint_server.CAPACITY
        assert await d.answers_others()
        assert await d.joining.drain(1)


@pytest.mark.simulated
async def test_large_findings_are_refused_before_memory_is_full() -> None:
    async with desk() as d:
        for _ in range(100):
            await d.send("forget", padding=1024 * 1024)
        await eventually(lambda: d.joining.refused > 0)
        assert d.joining.load().queued <= joint_server.CAPACITY_BYTES // (1024 * 1024)
        await asyncio.sleep(3)
        assert await d.answers_others()


async def test_a_joint_that_hangs_ends_its_worker_and_is_not_waited_for() -> None:
    async with desk(limit_s=0.2) as d:
        await d.send("hang")
        done, _ = await asyncio.wait([d.task], timeout=HANGS_S)
        assert done
        error = d.task.exception()
        assert isinstance(error, ExceptionGroup)
        assert error.split(ModelStuckError)[1] is None
