"""Which samples an escalation sends, with which deadline, and what it reports of each request."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from halimede.messages import Count, Frame, Prediction, Reply
from halimede.mining import Verdict
from halimede.mining.calibration_file import CalibrationFile
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.pipeline.escalation import Escalation, NextTier
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.sample import NOT_ESCALATED, Conclusion, Sample
from halimede.pipeline.transcode import Upload
from halimede.pipeline.upload_policy.adaptive_thresholds import ThresholdDraw
from halimede.pipeline.upload_policy.overload import HardTotals
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.tracing.steps import OFFLOAD, REGIONS
from tests.unit.frames.clouds import frame
from tests.unit.pipeline.answering import AUDIT, UP, Counts, new_sample

pytestmark = pytest.mark.simulated

OWN, DRAWN = Prediction(label="own"), Prediction(label="drawn")
BEYOND = Reply(id=bytes(16), worker="c0", prediction=Prediction(label="beyond"))
DRAW = UploadDecision(ask=True, hard=True, draw=ThresholdDraw(DRAWN, is_up=True, bin=0, observed=1.0))
EARLIER = UploadDecision(ask=True, hard=True, cut=0.5)
EASY_UP = UploadDecision(ask=True, hard=False)
HARD = Verdict(hard=True)


class Policy:
    """A policy that decides as it is told, and notes its calls."""

    mixture: CalibrationFile | None = None

    def __init__(self, decision: UploadDecision = UP) -> None:
        self.decision = decision
        self.calls: list[tuple[Any, ...]] = []
        self.withheld = Counter({OffloadReason.TOO_SLOW: 3})

    def decide(self, *args: Any, **options: Any) -> UploadDecision:
        self.calls.append(("decide", *args, *options.values()))
        return self.decision

    def decide_failed(self, *args: Any) -> UploadDecision:
        self.calls.append(("failed", *args))
        return self.decision

    def forget(self, decision: UploadDecision) -> None:
        self.calls.append(("forget", decision))

    def learn(self, decision: UploadDecision, prediction: Prediction) -> None:
        self.calls.append(("learn", decision, prediction))

    def compare(self, *_: Prediction, on_trial: bool) -> bool:
        return not on_trial

    def ended(self, decision: UploadDecision, took_s: float, now: float, **ended: Any) -> None:
        self.calls.append(("ended", took_s, now, *ended.values()))


class Client:
    """A next tier that answers after a second."""

    def __init__(self, answer: Reply | Exception = BEYOND) -> None:
        self.answer = answer
        self.requests: list[tuple[Frame, float, bool]] = []

    async def ask(self, frame: Frame, deadline_s: float, trace: object = None) -> Reply:
        self.requests.append((frame, deadline_s, trace is not None))
        await asyncio.sleep(1)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def abandon(self) -> None: ...


class Encoder:
    """Writes uploads of 3 bytes within a quarter of a second."""

    def __init__(self, *, regions: bool = False) -> None:
        self._regions: Any = None
        if regions:
            joint = Prediction(boxes=[])
            layout = SimpleNamespace(placements=(1, 2))
            self._regions = SimpleNamespace(layout=layout, joint=lambda _: joint)

    def size(self, _: Frame) -> int:
        return 77

    async def write(self, frame: Frame, left_s: float, *, whole: bool) -> Upload:
        await asyncio.sleep(0.25)
        frame.data = frame.data[:3]
        return Upload(frame, regions=None if whole else self._regions)


def escalation(client: Client | None = None, ledger: Counts | None = None, **options: Any) -> Escalation:
    return Escalation(client or Client(), cast("Any", ledger or Counts()), **options)


def sample(**fields: Any) -> Sample:
    intake = SimpleNamespace(responder=SimpleNamespace(return_s=0.5))
    return new_sample(frame(1), intake, **{"until": 10.0, **fields})


def steps(of: Sample) -> list[tuple[Any, ...]]:
    """Return the steps of its trace without their times."""
    return [(step[0], *step[3:]) for step in of.trace.steps]


#: outcome, tier, decision before inference, whether there is a policy; decision, and the calls of the policy
DECISIONS: list[tuple[Any, ...]] = [
    (InferenceOutcome(unfit=True), NextTier(), None, True, NOT_ESCALATED, []),
    (InferenceOutcome(unfit=True), NextTier(), AUDIT, True, NOT_ESCALATED, [("forget", AUDIT)]),
    (InferenceOutcome(), NextTier(hard=False), None, True, NOT_ESCALATED, []),
    (InferenceOutcome(), NextTier(), AUDIT, True, UP, [("failed", 4, AUDIT)]),
    (InferenceOutcome(OWN, verdict=HARD), NextTier(), None, False, UP, []),
    (InferenceOutcome(verdict=HARD), NextTier(), None, False, UP, []),
    (InferenceOutcome(OWN, verdict=HARD), NextTier(hard=False), None, False, EASY_UP, []),
    (InferenceOutcome(OWN), NextTier(), None, False, NOT_ESCALATED, []),
    (InferenceOutcome(OWN, verdict=HARD), NextTier(), EARLIER, True, EARLIER, []),
    (InferenceOutcome(OWN, verdict=HARD), NextTier(), None, True, UP, [("decide", HARD, OWN, 4, 8.5, 1.0, False)]),
]


@pytest.mark.parametrize(("outcome", "tier", "earlier", "has_policy", "decision", "calls"), DECISIONS)
async def test_a_sample_is_decided_by_its_outcome_its_tier_and_the_policy(
    *,
    outcome: InferenceOutcome,
    tier: NextTier,
    earlier: UploadDecision | None,
    has_policy: bool,
    decision: UploadDecision,
    calls: list[tuple[Any, ...]],
) -> None:
    policy = Policy()
    escalating = escalation(tier=tier, policy=policy if has_policy else None)
    actual = escalating.decide(sample(decision=earlier), outcome, 1.0)
    for field in ("ask", "hard", "audit", "cut"):
        assert getattr(actual, field) == getattr(decision, field)
    assert policy.calls == calls


async def test_thresholds_replace_the_prediction_and_mining_before_inference_has_none() -> None:
    policy = Policy(DRAW)
    escalating, outcome = escalation(policy=policy, encoder=Encoder()), InferenceOutcome(OWN, verdict=HARD)
    assert escalating.decide(sample(on_trial=True), outcome, 1.0) is DRAW
    assert outcome.prediction is DRAWN
    assert escalating.decide_unseen(sample(), HARD, 1.0) is DRAW
    assert policy.calls == [("decide", HARD, OWN, 77, 8.5, 1.0, True), ("decide", HARD, None, 77, 8.5, 1.0)]
    for hard in (True, False):
        decision = escalation().decide_unseen(sample(), Verdict(hard=hard), 1.0)
        assert (decision.ask, decision.hard, decision.audit) == (hard, hard, False)


@pytest.mark.parametrize(("deadline_s", "until", "left_s"), [(math.inf, 10.0, 7.5), (3.0, 10.0, 3.0), (9.0, 10.0, 7.5)])
async def test_an_answer_has_the_time_until_the_sooner_deadline_less_that_of_the_reply(
    deadline_s: float, until: float, left_s: float
) -> None:
    assert escalation(tier=NextTier(deadline_s=deadline_s)).time_left(sample(until=until), 2.0) == left_s


@pytest.mark.parametrize(
    ("decision", "deadline_s", "until", "encoder", "expected"),
    [
        (UP, math.inf, 10.0, None, (4, 9.5, True)),
        (UP, 3.0, 10.0, Encoder(), (3, 2.75, True)),
        (UP, 3.0, 0.5, Encoder(), (4, 0.0, True)),
        (UP, 3.0, 0.75, Encoder(), (3, 0.0, True)),
        (AUDIT, math.inf, 10.0, None, (4, 9.5, False)),
        (AUDIT, 30.0, 10.0, None, (4, 30.0, False)),
    ],
)
async def test_a_request_has_the_time_that_its_encoding_leaves_and_an_audit_that_of_its_tier(
    decision: UploadDecision,
    deadline_s: float,
    until: float,
    encoder: Encoder | None,
    expected: tuple[int, float, bool],
) -> None:
    client, policy = Client(), Policy()
    escalating = escalation(client, tier=NextTier(deadline_s=deadline_s), encoder=encoder, policy=policy)
    await asyncio.sleep(0)
    conclusion = await escalating.request(sample(until=until), InferenceOutcome(OWN), decision)
    ((sent, left_s, is_traced),) = client.requests
    assert (sent.data.nbytes, left_s, is_traced, sent.edge) == (*expected, OWN)
    took_s = 1.0 if expected[0] == 4 else 1.25
    assert policy.calls == [("ended", took_s, took_s, True, True, "")]
    assert (conclusion.reply, conclusion.reason, conclusion.sent) == (BEYOND, "", True)
    assert (conclusion.requested_at, conclusion.replied_at) == (0.0, took_s)
    assert escalating.totals() == (HardTotals(4, 1, 3) if decision is UP else HardTotals(3, 0, 3))


def failure(reason: OffloadReason, *, sent: bool = False, is_up: bool = False) -> OffloadError:
    error = OffloadError(reason)
    error.sent, error.is_up = sent, is_up
    return error


@pytest.mark.parametrize(
    ("error", "sent", "reason", "totals"),
    [
        (failure(OffloadReason.DEADLINE, sent=True, is_up=True), True, "deadline", HardTotals(1, unanswered=1)),
        (failure(OffloadReason.DEADLINE, sent=True), True, "deadline", HardTotals(1)),
        (failure(OffloadReason.SHED, is_up=True), False, "shed", HardTotals(1, refused=1)),
        (failure(OffloadReason.ERROR, is_up=True), False, "error", HardTotals(1)),
        (failure(OffloadReason.NO_CLOUD), False, "no-cloud", HardTotals(1)),
        (RuntimeError("defect"), False, "error", HardTotals(1)),
    ],
)
async def test_a_failed_request_reports_and_counts_its_reason_and_whether_it_was_sent_and_an_audit_counts_not_at_all(
    error: Exception, reason: str, totals: HardTotals, *, sent: bool
) -> None:
    policy, hard_sample = Policy(), sample()
    policy.withheld.clear()
    failing = escalation(Client(error), policy=policy)
    conclusion = await failing.request(hard_sample, InferenceOutcome(OWN), DRAW)
    assert policy.calls == [("ended", 1.0, 1.0, sent, False, reason)]
    assert (conclusion.reply, conclusion.reason, conclusion.sent) == (None, reason, sent)
    assert steps(hard_sample) == [(OFFLOAD, "", reason, sent)]
    await failing.request(sample(), InferenceOutcome(), AUDIT)
    assert failing.totals() == totals


async def test_a_reply_teaches_the_thresholds_and_its_regions_are_in_the_trace() -> None:
    policy, hard_sample = Policy(), sample()
    boxes = Reply(id=bytes(16), worker="c0", prediction=Prediction(boxes=[]))
    failed, answered = [
        await escalation(Client(reply), policy=policy, encoder=Encoder(regions=True)).request(
            hard_sample, InferenceOutcome(OWN), DRAW
        )
        for reply in (BEYOND, boxes)
    ]
    assert (failed.reply, failed.reason, failed.sent, hard_sample.uploaded) == (None, "error", True, 3)
    assert answered.reply
    assert [call for call in policy.calls if call[0] == "learn"] == [("learn", DRAW, answered.reply.prediction)]
    assert steps(hard_sample) == [
        (REGIONS, 2, 3), (OFFLOAD, "", "error", True), (REGIONS, 2, 3), (OFFLOAD, "c0", "", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "on_trial", "uploads", "counts"),
    [
        (BEYOND, False, None, {Count.AUDITED: 1, Count.AUDIT_AGREED: 1, Count.UPLOADED_BYTES: 3}),
        (
            BEYOND, True, Count.UPLOADED,
            {Count.AUDITED: 1, Count.CANARY_AUDITED: 1, Count.UPLOADED: 1, Count.UPLOADED_BYTES: 3},
        ),
        (OffloadError(OffloadReason.NO_CLOUD), False, Count.UPLOADED, {}),
        (Reply(id=bytes(16), worker="c0"), False, None, {Count.UPLOADED_BYTES: 3}),
    ],
)  # fmt: skip
async def test_an_audit_is_counted_if_both_answered(
    answer: Reply | Exception, uploads: Count | None, counts: dict[Count, int], *, on_trial: bool
) -> None:
    ledger, audited = Counts(), list[Conclusion]()
    auditing = escalation(
        Client(answer), ledger, tier=NextTier(uploads=uploads), policy=Policy(), encoder=Encoder(),
        audited=lambda _, conclusion: audited.append(conclusion),
    )  # fmt: skip
    await auditing.audit(sample(on_trial=on_trial), InferenceOutcome(OWN), AUDIT)
    assert +ledger == counts
    assert len(audited) == ledger[Count.AUDITED]
    before = ledger.total()
    await auditing.audit(sample(), InferenceOutcome(error="it broke"), AUDIT)
    assert ledger.total() - before == counts.get(Count.UPLOADED_BYTES, 0) + counts.get(Count.UPLOADED, 0)


@pytest.mark.parametrize(
    ("own", "beyond", "mixed", "overruled"),
    [
        (OWN, BEYOND.prediction, Prediction(label="own"), True),
        (OWN, BEYOND.prediction, Prediction(label="beyond"), False),
        (OWN, BEYOND.prediction, None, False),
        (None, BEYOND.prediction, None, False),
        (OWN, None, None, False),
    ],
)
async def test_both_answers_are_mixed_if_there_are_two(
    monkeypatch: pytest.MonkeyPatch, *, own: Prediction | None, beyond: Prediction | None,
    mixed: Prediction | None, overruled: bool,
) -> None:  # fmt: skip
    def mix(_: CalibrationFile, __: Prediction, there: Prediction) -> Prediction:
        return mixed or there

    monkeypatch.setattr("halimede.pipeline.escalation.mix", mix)
    policy = Policy()
    policy.mixture = CalibrationFile(service="s")
    mixing = escalation(Client(Reply(id=bytes(16), worker="c0", prediction=beyond)), policy=policy)
    conclusion = await mixing.request(sample(), InferenceOutcome(own), UP)
    assert (conclusion.mixed, conclusion.overruled) == (mixed, overruled)
    assert (await mixing.request(sample(), InferenceOutcome(own), AUDIT)).mixed is None
