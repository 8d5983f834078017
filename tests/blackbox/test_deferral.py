"""Which frames go up, and what becomes of two answers: audits, budgets, mixtures, and mining before inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.models import EASY, HARD, POISON, Estimator, big, small
from tests.blackbox.requester import asking
from tests.blackbox.scripted_cloud import scripted
from tests.blackbox.world import World, frame
from tests.waiting import eventually

EDGE_ONLY = {"HEM_NAME": "EdgeOnly", "HEM_PARAMETERS": ""}
CLOUD_ONLY = {"HEM_NAME": "CloudOnly", "HEM_PARAMETERS": ""}


class Says:
    """A model that gives one answer to all frames, of the classes "a" and "b"."""

    def __init__(self, label: str, *probabilities: float) -> None:
        self._answer = {"label": label, "probabilities": list(probabilities)}

    def predict(self, _: object) -> dict[str, Any]:
        return self._answer


SURE, DOUBTS = Says("a", 0.9, 0.1), Says("b", 0.45, 0.55)


def always(ratio: float) -> dict[str, str]:
    """Return a rule that decides before the small model has seen a frame."""
    parameters = json.dumps([{"key": "random_ratio", "value": str(ratio)}])
    return {"MINING_MODE": "mining-then-inference", "HEM_NAME": "Random", "HEM_PARAMETERS": parameters}


def mixture(folder: Path) -> dict[str, str]:
    """Return what makes a worker mix two answers, by a file as ``halimede calibrate`` writes it."""
    path = folder / "calibration.json"
    rule = {"kind": "product", "edge": 1.0, "cloud": 1.0}
    path.write_text(json.dumps({"service": "svc", "labels": ["a", "b"], "mixture": rule}))
    return {"FUSION": "mixture", "CALIBRATION_URL": str(path)}


@pytest.mark.parametrize(("label", "agreed"), [("small", 1), ("big", 0)])
async def test_an_audit_changes_no_answer_and_counts_whether_both_agree(world: World, label: str, agreed: int) -> None:
    async with world.pair(Estimator(label), small(), AUDIT_SHARE="1", **EDGE_ONLY):
        result = await world.ask(EASY)
        assert (result.by, result.label, result.audit, result.hard) == ("edge", "small", True, False)
        assert result.offload_ms == 0
        await eventually(lambda: (world.counts("e0").audited, world.counts("e0").inference_number) == (1, 1))
        counts = world.counts("e0")
        assert (counts.audit_agreed, counts.uploaded_bytes, counts.hard_example_number) == (agreed, 16, 0)
        assert (counts.cloud_inference_number, counts.upload_cloud_ratio) == (0, 1)
        await eventually(lambda: world.counts("c0").served == 1)
        assert world.copies[result.id] == 1


async def test_an_audit_is_not_waited_for(world: World) -> None:
    async with scripted(world, AUDIT_SHARE="1", DEADLINE_MS="60000", **EDGE_ONLY) as cloud:
        result = await world.ask(EASY)
        assert (result.by, result.audit, result.degraded) == ("edge", True, False)
        await cloud.asked(1)
        await eventually(lambda: world.counts("e0").inference_number == 1)
        assert (world.counts("e0").audited, world.counts("e0").degraded) == (0, 0)


async def test_a_tier_audits_its_own_answers(world: World) -> None:
    rules = {"AUDIT_SHARE": "1", **EDGE_ONLY}
    async with world.worker("cloud", "c1", big(), TIER="cloud"), world.worker("tier", "c0", Estimator("big"), **rules):
        await world.knows("c0", "c1")
        requester = await asking(world)
        reply = await requester.ask(frame(EASY))
        assert (reply.worker, reply.by, reply.tier) == ("c0", "", "gate")
        await eventually(lambda: world.counts("c0").audited == 1)
        counts = world.counts("c0")
        assert (counts.audit_agreed, counts.deferred, counts.uploaded_bytes) == (1, 0, 16)


@pytest.mark.parametrize(("mixes", "label"), [(True, "a"), (False, "b")])
async def test_two_answers_become_a_mixture_where_that_is_set_and_what_it_overrules_is_counted(
    world: World, mixes: bool, label: str
) -> None:
    async with world.pair(DOUBTS, SURE, **CLOUD_ONLY, **(mixture(world.folder) if mixes else {})):
        result = await world.ask(EASY)
        assert (result.by, result.worker, result.mixed, result.label) == ("cloud", "c0", mixes, label)
        assert (result.prediction.label, result.prediction.score) == (result.label, result.score)
        assert result.edge is not None
        assert result.edge.label == "a"
        await eventually(lambda: world.counts("e0").cloud_inference_number == 1)
        assert world.counts("e0").overruled == mixes


async def test_a_tier_mixes_its_answer_with_the_next_ones(world: World) -> None:
    mixed = {**CLOUD_ONLY, **mixture(world.folder)}
    async with world.worker("cloud", "c1", DOUBTS, TIER="cloud"), world.worker("tier", "c0", SURE, **mixed):
        await world.knows("c0", "c1")
        requester = await asking(world)
        reply = await requester.ask(frame(HARD))
        assert (reply.by, reply.tier, reply.error) == ("c1", "cloud", "")
        assert reply.prediction is not None
        assert reply.prediction.label == "a"
        await eventually(lambda: world.counts("c0").overruled == 1)


async def test_a_spent_budget_keeps_hard_frames_at_the_edge(world: World) -> None:
    async with world.worker("cloud", "c0", big()):
        async with world.worker("edge", "e0", small(), TARGET_UPLOAD_RATIO="0"):
            await world.knows("e0", "c0")
            results = [await world.ask(HARD) for _ in range(5)]
            assert {(r.by, r.label) for r in results} == {("edge", "small")}
            await eventually(lambda: world.counts("e0").inference_number == 5)
            assert (world.counts("e0").uploaded_bytes, world.counts("e0").upload_cloud_ratio) == (0, 0)
        assert world.counts("c0").served == 0


async def test_a_rule_without_grades_says_what_the_budget_withheld(world: World) -> None:
    target = {"TARGET_UPLOAD_RATIO": "0.25", **CLOUD_ONLY}
    async with world.pair(big(), small(), **target):
        results = [await world.ask(EASY) for _ in range(80)]
        up = [r for r in results if r.by == "cloud"]
        withheld = [r for r in results if r.by == "edge"]
        assert 10 <= len(up) <= 30
        assert {(r.hard, r.degraded, r.reason) for r in withheld} == {(True, True, "budget")}
        await eventually(lambda: world.counts("e0").inference_number == 80)
        counts = world.counts("e0")
        assert (counts.withheld, counts.degraded) == (len(withheld), len(withheld))
        assert counts.uploaded_bytes == 16 * len(up)
        assert await world.metric("e0", "degraded_answers_total", reason="budget") == len(withheld)


async def test_mining_before_inference_spares_the_small_model_what_goes_up(world: World) -> None:
    model = small()
    async with world.worker("edge", "e0", model, **always(1)):
        async with world.worker("cloud", "c0", big()):
            await world.knows("e0", "c0")
            result = await world.ask(EASY)
            assert (result.by, result.hard, result.label, result.edge) == ("cloud", True, "big", None)
            assert not model.calls
        await eventually(lambda: "c0" not in world.loads)
        result = await world.ask(EASY)
        assert (result.by, result.hard, result.degraded, result.label) == ("edge", True, True, "small")
        assert result.reason in {"no-cloud", "circuit-open"}
        assert model.seen == [EASY]


async def test_mining_before_inference_keeps_what_is_easy(world: World) -> None:
    async with world.pair(big(), small(), **always(0)):
        result = await world.ask(HARD)
        assert (result.by, result.hard, result.label) == ("edge", False, "small")


async def test_mining_before_inference_answers_late_where_the_cloud_is_silent(world: World) -> None:
    async with scripted(world, DEADLINE_MS="2000", **always(1)) as cloud:
        result = await world.ask(EASY)
        assert (result.by, result.degraded, result.reason, result.label) == ("edge", True, "deadline", "small")
        await cloud.asked(1)
        assert cloud.requests[0].body.edge is None


async def test_where_nothing_may_go_up_what_the_small_model_fails_on_stays(world: World) -> None:
    model = small(fails_at={POISON})
    async with world.pair(big(), model, **EDGE_ONLY):
        result = await world.ask(POISON)
        assert (result.by, result.degraded, result.reason) == ("edge", True, "error")
        await eventually(lambda: world.counts("e0").inference_number == 1)
        assert world.counts("e0").uploaded_bytes == 0
