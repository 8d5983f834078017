"""A result shows whose answer it is and why, and is counted when the broker has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from halimede.messages import Count, Prediction, Reply
from halimede.pipeline.escalation import NextTier
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.sample import Conclusion
from halimede.tracing import TraceBuffer, TraceContext
from halimede.tracing.steps import RESULT
from tests.unit.pipeline.answering import Counts
from tests.unit.pipeline.test_reply_responder import BEYOND, FAILED, HARD, HELD_BACK, OWN, result_responder, sample

#: whether a result has the edge's answer, its worker, model and tier; the latter three of the cloud
EDGE, CLOUD = (False, "e0", "v1", "edge"), ("c0", "v9", "cloud")
#: conclusion, what it is by, whether degraded, its reason, label, the edge's answer, worker, model and tier
RESULTS: list[tuple[Conclusion, tuple[Any, ...]]] = [
    (Conclusion(OWN), ("edge", False, "", "own", *EDGE)),
    (Conclusion(OWN, HARD, reason="no-cloud", requested_at=1.0), ("edge", True, "no-cloud", "own", *EDGE)),
    (Conclusion(OWN, HELD_BACK, reason="budget"), ("edge", False, "budget", "own", *EDGE)),
    (Conclusion(FAILED, HELD_BACK, reason="budget", requested_at=1.0), ("edge", True, "budget", None, *EDGE)),
    (Conclusion(FAILED), ("edge", True, "error", None, *EDGE)),
    (Conclusion(OWN, HARD, reply=BEYOND, requested_at=1.0), ("cloud", False, "", "beyond", True, *CLOUD)),
    (
        Conclusion(FAILED, HARD, reply=BEYOND, requested_at=1.0),
        ("cloud", False, "edge-failed", "beyond", False, *CLOUD),
    ),
    (
        Conclusion(FAILED, HARD, reply=Reply(id=bytes(16), worker="g0", by="c7", reason="no-cloud"), requested_at=1.0),
        ("cloud", False, "no-cloud", None, False, "c7", "", "next"),
    ),
    (
        Conclusion(OWN, HARD, reply=BEYOND, mixed=Prediction(label="mixed"), requested_at=1.0),
        ("cloud", False, "", "mixed", True, *CLOUD),
    ),
]


@pytest.mark.parametrize(("conclusion", "shown"), RESULTS)
async def test_a_result_shows_whose_answer_it_is_and_why(conclusion: Conclusion, shown: tuple[Any, ...]) -> None:
    answered = sample()
    answered.version = "v1"
    result, decision = result_responder()._result(answered, conclusion, 2.0), conclusion.decision
    assert (result.by, result.degraded, result.reason, result.label) == shown[:4]
    assert (result.edge is not None, result.worker, result.model, result.tier) == shown[4:]
    assert (result.hard, result.hardness, result.cut) == (decision.hard, decision.hardness, decision.cut)
    assert (result.audit, result.mixed) == (decision.audit, conclusion.mixed is not None)
    assert (result.total_ms, result.offload_ms) == (2000.0, -1000.0 if conclusion.requested_at else 0.0)
    if not conclusion.reply:
        answered.peer = "e7"
        result = result_responder()._result(answered, conclusion, 2.0)
        assert (result.by, result.worker) == ("peer", "e7")


@pytest.mark.parametrize(
    ("by", "fields", "on_trial", "counts"),
    [
        ("edge", {}, False, {}),
        ("cloud", {"sent": True}, False, {Count.CLOUD: 1, Count.UPLOADED: 1, Count.UPLOADED_BYTES: 4}),
        ("edge", {}, True, {Count.CANARY_ANSWERED: 1}),
        ("edge", {"decision": HARD}, True, {Count.CANARY_ANSWERED: 1, Count.HARD: 1, Count.CANARY_HARD: 1}),
        ("edge", {"decision": HELD_BACK, "reason": "budget"}, False, {Count.HARD: 1, Count.WITHHELD: 1}),
        ("edge", {"decision": HARD, "reason": "no-cloud"}, False, {Count.HARD: 1, Count.DEGRADED: 1}),
        ("edge", {"overruled": True}, False, {Count.OVERRULED: 1}),
    ],
)
@pytest.mark.parametrize("reason", [0, 0x10, 0x80])
async def test_a_result_is_counted_when_the_broker_has_it(
    by: str, fields: dict[str, Any], counts: dict[Count, int], reason: int, *, on_trial: bool
) -> None:
    conclusion, acknowledged = Conclusion(OWN, reply=BEYOND if by == "cloud" else None, **fields), list[int]()
    for sources in (0, 2):
        results, answered = result_responder(), sample()
        answered.on_trial = on_trial
        for number in range(sources):
            results.add_source(answered.frame.id, partial(acknowledged.append, number))
        results._record_result(answered, conclusion, results._result(answered, conclusion, 2.0), 1.0, reason)
        expected = {
            **counts,
            Count.ANSWERED: 1,
            Count.ACCEPTED: int(sources > 0),
            Count.UNRECEIVED: int(reason == 0x10),
        }
        assert results.ledger == (Counts(expected) if reason < 0x80 else Counts())
        assert results.degraded == ({"no-cloud": 1} if Count.DEGRADED in counts and reason < 0x80 else {})
    assert acknowledged == [0, 1]


async def test_findings_for_a_joint_count_no_uploads_and_labels_in_traces_have_256_characters() -> None:
    results, answered = result_responder(tier=NextTier("joint", hard=False)), sample()
    conclusion = Conclusion(InferenceOutcome(Prediction(label="x" * 300)), sent=True)
    results._record_result(answered, conclusion, results._result(answered, conclusion, 2.0), 1.0, 0)
    assert results.ledger[Count.UPLOADED] == results.ledger[Count.UPLOADED_BYTES] == 0
    ((kind, *_, label),) = answered.trace.steps
    assert (kind, label) == (RESULT, "x" * 256)


async def test_a_result_has_the_trace_of_its_frame_if_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    results, parents = result_responder(), list[str]()
    monkeypatch.setattr(
        results.outbox, "put", lambda *_, properties: parents.append((properties or {}).get("traceparent", "")[:36])
    )
    for parent in (None, TraceContext(0xAB, 0xCD, True)):
        answered = sample()
        answered.trace = TraceBuffer().begin(answered.frame.id, parent)
        results.send(answered, Conclusion(OWN))
    assert parents == ["", f"00-{0xAB:032x}-"]
