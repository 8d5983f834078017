"""What the responder of requests replies and remembers, and how much of a deadline it reserves for a reply."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from halimede import topics
from halimede.bus.acked_publisher import AckedPublisher
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Box, Count, PicturePoint, Prediction, Reply, TextLine
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadReason
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.responders import (
    TOO_LARGE,
    Origin,
    ReplyResponder,
    ResultResponder,
    _without_prediction,
    result_outbox,
    weight,
)
from halimede.pipeline.sample import Conclusion, Sample
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.tracing import TraceBuffer
from tests.unit.frames.clouds import NS, SERVICE, frame
from tests.unit.pipeline.answering import Counts, new_sample
from tests.unit.pipeline.test_result_outbox import ADDRESS, result

pytestmark = pytest.mark.simulated

REPLY = Reply(id=bytes(16), worker="c0")


def responder() -> ReplyResponder:
    channel = inference(NS, SERVICE, "c0")
    return ReplyResponder(MemoryBus("c0", MemoryBroker()), channel, limit=1, trace_buffer=TraceBuffer())


def result_responder(**options: Any) -> ResultResponder:
    outbox, ledger = result_outbox(MemoryBus("e0", MemoryBroker())), cast("Any", Counts())
    return ResultResponder(Origin("s", "e0", "node-e0", "edge", "next"), outbox, ADDRESS, ledger, **options)


def sample() -> Sample:
    return new_sample(frame(1), reply_to=topics.REPLY.at(ns=NS, service=SERVICE, worker="e0"))


@pytest.fixture(name="sent")
def _sent(monkeypatch: pytest.MonkeyPatch) -> list[Reply]:
    """The replies that all responders send."""
    replies: list[Reply] = []
    monkeypatch.setattr(AckedPublisher, "put", lambda _, __, reply, *___, **____: replies.append(reply))
    return replies


async def test_twice_the_usual_time_of_a_delivery_is_reserved_and_ten_milliseconds_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies, usual_s = responder(), 0.0
    monkeypatch.setattr("halimede.pipeline.responders.time", SimpleNamespace(monotonic=lambda: 100.0))
    assert replies.return_s == 0.01
    for seconds, reason in ((0.0, 0), (1.0, 0), (5.0, 0x80), (2.0, 0x10), (0.0, 0)):
        replies._record_reply(sample(), REPLY, 100.0 - seconds, reason)
        if reason < 0x80:
            usual_s += 0.2 * (seconds - usual_s)
        assert replies.return_s == pytest.approx(max(0.01, 2 * usual_s))


async def test_the_trace_says_whether_a_reply_found_its_requester() -> None:
    steps = []
    for reason in (0, 0x10, 0x80):
        answered = sample()
        responder()._record_reply(answered, REPLY, time.monotonic(), reason)
        steps += [step[3:] for step in answered.trace.steps]
    assert steps == [("", True), ("", False), ("", False)]


async def test_the_last_1024_replies_and_strikes_are_remembered() -> None:
    replies = responder()
    for number in range(1025):
        replies.remembered.put(("t", number.to_bytes(2)), REPLY)
        replies._blame(number.to_bytes(2), unfit=False)
    remembered = [number for number in range(1025) if replies.remembered.get(("t", number.to_bytes(2)))]
    assert remembered == list(range(1, 1025))
    assert [replies._blame(number.to_bytes(2), unfit=False) for number in (1, 0)] == ["quarantined", "failed"]
    assert replies.is_quarantined((1).to_bytes(2))
    assert (replies.stats.failed, replies.stats.unfit) == (1027, 0)
    assert replies._blame(b"x", unfit=True) == "invalid"
    assert (replies.stats.failed, replies.stats.unfit) == (1028, 1)


async def test_of_results_32_are_under_way_and_256_more_may_wait() -> None:
    outbox = result_outbox(MemoryBus("e0", MemoryBroker()))
    for number in range(288):
        assert outbox.ready
        outbox.put(ADDRESS, result(number))
    assert (outbox.ready, outbox.waiting, outbox.pending) == (False, 288, 288)


async def test_what_cannot_be_sent_is_replaced_once() -> None:
    replies, error = responder(), ValueError("nested too deeply")
    substitute = replies._unwritable(REPLY, error)
    assert substitute
    assert (substitute.id, substitute.error) == (REPLY.id, "failed")
    assert substitute.message == "the prediction cannot be sent"
    assert replies._unwritable(substitute, error) is None
    shorter = _without_prediction(result(1, "x"), error)
    assert shorter
    assert (shorter.id, shorter.prediction, shorter.reason) == (result(1).id, Prediction(), TOO_LARGE)
    assert _without_prediction(shorter, error) is None


async def test_replies_and_results_have_their_times_in_milliseconds(sent: list[Reply]) -> None:
    replies, request = responder(), sample()
    request.queued, outcome = 10.0, InferenceOutcome(Prediction(label="7"), batch=2, ms=40.0, began=12.5)
    for decoded in (None, (10.25, 12.0), (9.0, 12.0)):
        outcome.decoded = decoded
        replies.send(request, Conclusion(outcome))
    assert [(reply.queue_ms, reply.compute_ms) for reply in sent] == [(2500.0, 40.0), (250.0, 40.0), (0.0, 40.0)]
    before_ms = time.monotonic() * 1000
    replies._record_reply(request, REPLY, time.monotonic(), 0)
    assert before_ms <= replies.times.total.total <= time.monotonic() * 1000, "it began at 0"
    results, conclusion = result_responder(), Conclusion(outcome, reply=REPLY, requested_at=1.0, replied_at=3.5)
    published = results._result(request, conclusion, 10.0)
    assert (published.total_ms, published.edge_ms, published.offload_ms) == (10_000.0, 40.0, 2500.0)
    results.send(request, conclusion)
    assert results.times.offload.total == 2500.0


OWN = InferenceOutcome(Prediction(label="own", score=0.5))
FAILED, UNFIT = InferenceOutcome(error="it broke"), InferenceOutcome(error="no picture", unfit=True)
BEYOND = Reply(id=bytes(16), worker="c0", prediction=Prediction(label="beyond"), model="v9", tier="cloud")


@pytest.mark.parametrize(
    ("outcome", "reply", "error", "is_remembered"),
    [
        (OWN, None, "", True),
        (InferenceOutcome(Prediction(embeddings=bytes(64 * 1024))), None, "", True),
        (InferenceOutcome(Prediction(embeddings=bytes(64 * 1024 + 1))), None, "", False),
        (FAILED, None, "failed", False),
        (UNFIT, None, "invalid", True),
        (FAILED, BEYOND, "", True),
    ],
)
async def test_a_reply_is_remembered_unless_the_model_may_answer_next_time_or_it_is_large(
    sent: list[Reply], outcome: InferenceOutcome, reply: Reply | None, error: str, *, is_remembered: bool
) -> None:
    replies, request = responder(), sample()
    replies.send(request, Conclusion(outcome, reply=reply))
    assert sent[0].error == error
    assert len(replies.remembered) == is_remembered
    replies.send(request, Conclusion(FAILED))
    if outcome is FAILED:
        assert (sent[1].error, len(replies.remembered)) == ("quarantined", 1)


async def test_the_message_of_a_failure_has_4096_characters(sent: list[Reply]) -> None:
    responder().send(sample(), Conclusion(InferenceOutcome(error="x" * 10_000)))
    assert (sent[0].error, len(sent[0].message)) == ("failed", 4096)


@pytest.mark.parametrize(
    ("prediction", "size"),
    [
        (Prediction(probabilities=[0.5] * 3), 96),
        (Prediction(boxes=[Box(0, 0, 1, 1, 0.5)] * 2), 512),
        (Prediction(landmarks=[[PicturePoint(1, 2)] * 3, [PicturePoint(1, 2)]]), 512),
        (Prediction(lines=[TextLine(text="four", score=0.5, corners=[])] * 2), 1056),
        (Prediction(embeddings=b"vector"), 6),
        (Prediction(value="text"), 20),
        (
            Prediction(
                probabilities=[0.5] * 8, boxes=[Box(0, 0, 1, 1, 0.5)], landmarks=[[PicturePoint(1, 2)] * 2],
                lines=[TextLine(text="", score=0.5, corners=[])], embeddings=bytes(256), value="text",
            ),
            1556,
        ),
        (Prediction(value=2**64), sys.maxsize),
        (None, 0),
    ],
)  # fmt: skip
def test_each_part_of_a_reply_counts_with_the_memory_that_it_takes(prediction: Prediction | None, size: int) -> None:
    assert weight(prediction) == size


async def test_a_reply_names_who_answered_and_why(sent: list[Reply]) -> None:
    replies, mixed = responder(), Prediction(label="mixed")
    second_hop = Reply(id=bytes(16), worker="g1", by="c0", prediction=BEYOND.prediction, reason="budget")
    for conclusion in (
        Conclusion(OWN, reason="no-cloud"),
        Conclusion(OWN, reply=BEYOND, reason=""),
        Conclusion(OWN, reply=second_hop, mixed=mixed),
    ):
        request = sample()
        request.version = "v1"
        replies.send(request, conclusion)
    assert [(reply.prediction and reply.prediction.label, reply.by, reply.model, reply.reason) for reply in sent] == [
        ("own", "", "v1", "no-cloud"),
        ("beyond", "c0", "v9", ""),
        ("mixed", "c0", "", "budget"),
    ]
    assert (replies.stats.served, replies.stats.failed) == (3, 0)


HELD_BACK = UploadDecision(ask=False, hard=True, reason=OffloadReason.BUDGET, hardness=0.7, cut=0.9)
HARD = UploadDecision(ask=True, hard=True, hardness=0.7, cut=0.5)


@pytest.mark.parametrize(
    ("decision", "fields", "counts"),
    [
        (UploadDecision(ask=False, hard=False), {}, {}),
        (HARD, {}, {Count.HARD: 1}),
        (HELD_BACK, {}, {Count.HARD: 1, Count.WITHHELD: 1}),
        (HARD, {"overruled": True}, {Count.HARD: 1, Count.OVERRULED: 1}),
        (HARD, {"sent": True}, {Count.HARD: 1, Count.DEFERRED: 1, Count.UPLOADED_BYTES: 4}),
    ],
)
async def test_a_tier_counts_what_it_decided_and_sent(
    decision: UploadDecision, fields: dict[str, Any], counts: dict[Count, int]
) -> None:
    ledger: Any = Counts()
    responder()._count(ledger, sample(), Conclusion(OWN, decision, **fields))
    assert +ledger == counts
