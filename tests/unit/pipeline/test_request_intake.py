"""A request is accepted, renewed, repeated or refused at its arrival."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import InvalidFieldError
from halimede.frames import new_frame
from halimede.messages import Frame, Reply
from halimede.offload.channel import inference
from halimede.pipeline.intake import RequestIntake, RequestLimits
from halimede.pipeline.sample import Sample
from halimede.tracing.steps import ARRIVE
from tests.unit.frames.clouds import NS, SERVICE

pytestmark = pytest.mark.simulated

TO = topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="c0")
#: the trace of a request, without the span
PARENT = f"00-{'ab' * 16}-"


def request(value: int, size: int = 10, deadline_ms: float = 5000.0) -> Frame:
    frame = new_frame(np.full(size, value % 256, np.uint8))
    return msgspec.structs.replace(frame, id=value.to_bytes(16), deadline_ms=deadline_ms, worker="e0")


class Arrivals:
    """An intake before a pipeline that only notes the samples that it gets."""

    def __init__(self, *, busy: bool | None = None, **limits: Any) -> None:
        self.samples: list[Sample] = []
        self.replies: list[tuple[str, bytes]] = []
        self.parents: list[str] = []
        self.lateness: list[tuple[int, float]] = []
        self.late = False
        self.touched = 0
        self.pipeline: Any = SimpleNamespace(
            submit=self.samples.append,
            load=lambda: SimpleNamespace(service_ms=12.34),
            rate=SimpleNamespace(is_late=self.is_late, capacity=9),
            inside=7,
            delegated=3,
        )
        advertiser: Any = SimpleNamespace(touch=self.touch)
        self.intake = RequestIntake(
            MemoryBus("c0", MemoryBroker()), inference(NS, SERVICE, "c0", tier="gate"), self.pipeline,
            limits=RequestLimits(**limits), advertiser=advertiser, busy=None if busy is None else lambda: busy,
        )  # fmt: skip
        self.intake.responder.outbox.put = self.put  # type: ignore[method-assign]

    def is_late(self, before: int, left_s: float) -> bool:
        self.lateness.append((before, left_s))
        return self.late

    def touch(self) -> None:
        self.touched += 1

    def put(self, address: object, reply: Reply, *_: object, correlation: bytes, properties: Any = None) -> None:
        self.replies.append((reply.error, correlation))
        self.parents.append((properties or {}).get("traceparent", "")[: len(PARENT)])

    def take(
        self,
        frame: Frame,
        correlation: bytes = b"c",
        requester: str = "e0",
        properties: tuple[tuple[str, str], ...] = (),
    ) -> None:
        to = topics.REPLY.at(ns=NS, service=SERVICE, worker=requester).text
        packet = Packet(TO.text, b"", response_topic=to, correlation=correlation, properties=properties)
        self.intake.take(Delivery(TO, {}, frame, packet))


@pytest.mark.parametrize(
    ("limits", "sizes", "accepted"),
    [
        ({"queue": 2}, (10, 10, 10), 2),
        ({"queue_bytes": 30}, (10, 20, 1), 2),
        ({"queue_bytes": 29}, (10, 20), 1),
        ({"queue_bytes": 30}, (31, 30), 1),
        ({"busy": True}, (10,), 0),
        ({"busy": False}, (10,), 1),
    ],
)
async def test_requests_are_accepted_up_to_the_limits_of_their_number_and_bytes(
    limits: dict[str, Any], sizes: tuple[int, ...], accepted: int
) -> None:
    arrivals = Arrivals(**limits)
    for value, size in enumerate(sizes):
        arrivals.take(request(value, size))
    refused = len(sizes) - accepted
    assert len(arrivals.samples) == len(arrivals.intake.inside) == accepted
    assert arrivals.intake.stats.refused == refused
    assert arrivals.replies == [("overloaded", b"c")] * refused
    for sample in arrivals.samples:
        arrivals.intake.leave(sample)
    assert (arrivals.intake._bytes, arrivals.intake.inside, arrivals.touched) == (0, {}, 2 * accepted)


async def test_the_samples_of_the_model_and_the_time_left_for_it_decide_whether_a_request_would_be_late() -> None:
    arrivals = Arrivals()
    arrivals.intake.responder.return_s = 0.5
    arrivals.take(request(1, deadline_ms=2000.0))
    arrivals.late = True
    for deadline_ms in (0.0, 599_000.0, 600_000.0, 3_600_000.0):  # a request has ten minutes at most
        arrivals.take(request(2, deadline_ms=deadline_ms))
    assert {error for error, _ in arrivals.replies} == {"overloaded"}
    assert arrivals.lateness == [(4, 1.5), (4, 599.5), (4, 598.5), (4, 599.5), (4, 599.5)]
    assert [(sample.frame.id, sample.until) for sample in arrivals.samples] == [(request(1).id, 2.0)]


@pytest.mark.parametrize(("size", "renewed"), [(5, True), (25, True), (26, False)])
async def test_a_request_that_comes_again_takes_the_place_of_the_one_that_waits(size: int, *, renewed: bool) -> None:
    arrivals = Arrivals(queue=2, queue_bytes=35)
    for value in (1, 2):
        arrivals.take(request(value))
    await asyncio.sleep(1)
    arrivals.take(request(1, size, deadline_ms=9000.0), b"again")
    sample = arrivals.samples[0]
    assert len(arrivals.samples) == len(arrivals.intake.inside) == 2
    assert (sample.size, sample.pixels, sample.frame.data.nbytes) == ((size,) * 3 if renewed else (10,) * 3)
    assert (sample.correlation, sample.until) == ((b"again", 10.0) if renewed else (b"c", 5.0))
    assert arrivals.replies == ([] if renewed else [("overloaded", b"again")])
    assert arrivals.intake._bytes == (10 + size if renewed else 20)


async def test_a_request_keeps_what_its_answer_needs() -> None:
    arrivals = Arrivals()
    await asyncio.sleep(1)
    arrivals.take(request(1))
    (sample,) = arrivals.samples
    assert (sample.accepted, sample.until, sample.size, sample.pixels, sample.mined) == (1.0, 6.0, 10, 10, False)
    assert sample.reply_to
    assert (sample.reply_to.text.rsplit("/", 1)[-1], sample.correlation) == ("e0", b"c")
    ((kind, began, ended, *arrival),) = sample.trace.steps
    assert (kind, arrival) == (ARRIVE, ["e0", 10, "raw"])
    assert sample.began == began <= ended == sample.queued
    assert math.isinf(sample.stale_at)


async def test_a_reply_has_the_trace_of_its_request_if_that_has_one() -> None:
    arrivals = Arrivals()
    for value, properties in enumerate(((), (("traceparent", f"{PARENT}{'cd' * 8}-01"),))):
        arrivals.take(request(value), properties=properties)
        arrivals.intake.expire(arrivals.samples[value], hopeless=True)
    assert arrivals.parents == ["", PARENT]


async def test_a_requester_needs_correlation_data_in_each_request() -> None:
    arrivals = Arrivals()
    for accepted in (0, 1):
        for correlation in (b"", b"x" * 65):
            with pytest.raises(InvalidFieldError, match="correlation data"):
                arrivals.take(request(2), correlation)
        assert len(arrivals.samples) == accepted
        arrivals.take(request(1), b"x" * 64)


async def test_4096_reply_topics_are_remembered_and_one_more_replaces_them() -> None:
    arrivals = Arrivals(queue=5000)
    counts = []
    for number in range(4097):
        arrivals.take(request(number), requester=f"e{number}")
        counts.append(len(arrivals.intake._requesters))
    assert counts == [*range(1, 4097), 1]


@pytest.mark.parametrize(
    ("capacity", "inside", "credits_", "most"), [(9, 2, 2, 4), (3, 2, 1, 3), (9, 4, 0, 4), (3, 4, 0, 3)]
)
async def test_the_load_offers_the_capacity_that_no_request_has(
    capacity: int, inside: int, credits_: int, most: int
) -> None:
    arrivals = Arrivals(queue=4)
    for value in range(inside):
        arrivals.take(request(value))
    arrivals.pipeline.rate.capacity = capacity
    load = arrivals.intake.load()
    assert (load.credits, load.queued, load.places, load.tier) == (credits_, inside, most, "gate")
    assert load.service_ms == 12.3


@pytest.mark.parametrize(("hopeless", "replies"), [(True, [("expired", b"c")]), (False, [])])
async def test_a_request_without_time_is_counted_and_told_only_while_it_waits(
    hopeless: bool, replies: list[tuple[str, bytes]]
) -> None:
    arrivals = Arrivals()
    arrivals.take(request(1))
    arrivals.intake.expire(arrivals.samples[0], hopeless=hopeless)
    assert (arrivals.intake.stats.expired, arrivals.replies, arrivals.intake.inside) == (1, replies, {})


def test_the_usual_limits_of_requests_are_these() -> None:
    usual = RequestLimits(queue=64, queue_bytes=268_435_456, batch=32, replies=128, horizon_s=1.0, delay_s=0.0)
    assert RequestLimits() == usual
