"""From one version to the next: which one answers, which one is tried, what is refused. Decided without a model."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from halimede.errors import InvalidFieldError
from halimede.messages import ModelInUse
from halimede.models.desired_state import DesiredModel, spec_of
from halimede.models.rollout import ALL_PERCENT, CANARY_FAILED, MAX_MESSAGE, MAX_REASON, MAX_STRIKES, Rollout
from tests.properties import examples


@dataclasses.dataclass(eq=False)
class Opened:
    desired: DesiredModel | None
    version: str
    digest: str


def desired(content: str, percent: int = 100, version: str = "") -> DesiredModel:
    return DesiredModel(
        name="m", path=f"/{content}", version=version or content, digest=content, canary_percent=percent
    )


def opened(content: str) -> Opened:
    return Opened(desired(content), content, content)


def with_canary(percent: int = 10) -> tuple[Rollout[Opened], Opened, Opened]:
    current, canary = opened("1"), opened("2")
    rollout = Rollout(current)
    assert rollout.use(canary, percent) == []
    return rollout, current, canary


def test_the_first_version_is_loaded_and_the_same_again_needs_nothing() -> None:
    rollout = Rollout[Opened]()
    assert rollout.step(desired("1", 10)) == "load"
    assert rollout.use(opened("1"), 10) == []
    assert (rollout.canary, rollout.percent) == (None, 0), "there is nothing else that could answer"
    assert rollout.step(desired("1")) == "withdraw"  # of a canary, and there is none
    assert rollout.withdraw() == []
    assert rollout.step(desired("2")) == "load"


def test_a_canary_is_given_more_then_all_or_withdrawn() -> None:
    rollout, current, canary = with_canary(10)
    assert rollout.step(desired("2", 50)) == "share"
    assert (rollout.use(canary, 50), rollout.canary, rollout.percent) == ([], canary, 50)
    assert rollout.step(desired("2")) == "promote"
    assert rollout.step(desired("1")) == "withdraw"
    assert rollout.step(desired("3", 10)) == "load"
    assert rollout.use(canary, 100) == [current]
    assert (rollout.current, rollout.canary, rollout.percent) == (canary, None, 0)


def test_what_was_refused_is_kept_from_loading_until_something_else_is_desired() -> None:
    rollout = Rollout(opened("1"))
    rollout.refuse("ModelInvalid", "it is no model", desired("2"), "2")
    rollout.settle(desired("2"))
    assert (rollout.step(desired("2", 10)), rollout.step(desired("3"))) == ("keep", "load")
    why = {"reason": "ModelInvalid", "message": "it is no model", "mark": desired("2").fingerprint}
    assert rollout.in_use() == ModelInUse(digest="1", version="1", refused="2", **why)
    rollout.retry()
    assert (rollout.step(desired("2")), rollout.in_use().reason) == ("load", "ModelInvalid")
    rollout.use(opened("2"), 100)
    assert rollout.in_use() == ModelInUse(digest="2", version="2", mark=desired("2").fingerprint)


def test_the_same_content_goes_by_the_version_that_it_was_given_last() -> None:
    rollout, _, _ = with_canary()
    rollout.settle(desired("2", 10, "two"))
    assert (rollout.in_use().version, rollout.in_use().canary_version) == ("1", "two")
    unnamed = Rollout(Opened(DesiredModel(name="m", path="/1"), "", ""))
    unnamed.settle(desired("1"))
    assert (unnamed.in_use().version, unnamed.in_use().digest) == ("1", "1")


def test_a_canary_is_withdrawn_and_refused_after_so_many_strikes_and_no_other_version_is() -> None:
    rollout, current, canary = with_canary()
    assert not any(rollout.strike(other, "no canary") for other in (current, opened("3")) for _ in range(9))
    assert [rollout.strike(canary, "it failed") for _ in range(MAX_STRIKES)] == [False] * (MAX_STRIKES - 1) + [True]
    assert (rollout.current, rollout.canary, rollout.percent) == (current, None, 0)
    said = rollout.in_use()
    assert (said.version, said.canary_version, said.refused, said.reason, said.message) == (
        "1", "", "2", CANARY_FAILED, "it failed",
    )  # fmt: skip
    assert rollout.step(desired("2", 10)) == "keep"
    assert not rollout.strike(canary, "it is gone already")


def test_what_is_reported_has_a_bound() -> None:
    rollout = Rollout[Opened]()
    rollout.refuse("r" * 9999, "m" * 9999)
    assert (len(rollout.in_use().reason), len(rollout.in_use().message)) == (MAX_REASON, MAX_MESSAGE)


def test_a_spec_without_a_format_is_plain_onnx_and_a_wrong_one_is_named() -> None:
    assert spec_of(desired("1"), "spec").is_onnx
    wrong = DesiredModel(name="m", path="/1", spec={"format": "onnx", "labels": 7})
    with pytest.raises(InvalidFieldError, match=r"MODEL_FILE\.spec\.labels"):
        spec_of(wrong, "MODEL_FILE.spec")


class AnyOrder(RuleBasedStateMachine):
    """Follows desired models in any order, as their owners do, with strikes and refusals in between."""

    @initialize(started=st.booleans())
    def start(self, started: bool) -> None:
        first = opened("0") if started else None
        self.rollout = Rollout(first)
        self.open = {first} if first else set()
        self.strikes = 0
        self.answers = started

    def leave(self, versions: list[Opened]) -> None:
        for each in versions:
            self.open.remove(each)  # fails for one that has left before

    @rule(content=st.sampled_from("0123"), percent=st.integers(0, 100), broken=st.booleans(), again=st.booleans())
    def follow(self, content: str, percent: int, broken: bool, again: bool) -> None:
        rollout, wanted = self.rollout, desired(content, percent)
        if again:
            rollout.retry()
        before, step = (rollout.current, rollout.canary), rollout.step(wanted)
        if step == "load" and broken:
            rollout.refuse("ModelInvalid", "it is no model", wanted, content)
        elif step == "load":
            new = opened(content)
            self.open.add(new)
            self.leave(rollout.use(new, percent))
            self.strikes = 0
            assert new in {rollout.current, rollout.canary}
        elif step == "withdraw":
            rollout.forgive()
            self.leave(rollout.withdraw())
            assert rollout.current is before[0]
        elif step in {"share", "promote"}:
            assert rollout.canary
            self.leave(rollout.use(rollout.canary, percent))
            assert before[1] is (rollout.current if step == "promote" else rollout.canary)
        else:
            assert (step, rollout.refused is not None) == ("keep", True)
            assert (rollout.current, rollout.canary) == before
        rollout.settle(wanted)
        said = rollout.in_use()
        assert said.mark == wanted.fingerprint
        assert content in {said.version, said.canary_version, said.refused}

    @precondition(lambda self: self.rollout.canary)
    @rule()
    def strike(self) -> None:
        rollout, canary = self.rollout, self.rollout.canary
        self.strikes += 1
        gone = rollout.strike(canary, "it failed")
        assert gone == (self.strikes == MAX_STRIKES) == (rollout.canary is None)
        if gone:
            self.leave([canary])
            assert (rollout.reason, rollout.refused_digest) == (CANARY_FAILED, canary.digest)

    @rule()
    def strike_one_that_has_left(self) -> None:
        assert not self.rollout.strike(opened("0"), "it failed")

    @invariant()
    def nothing_is_lost(self) -> None:
        rollout = self.rollout
        self.answers = self.answers or rollout.current is not None
        assert self.answers == (rollout.current is not None), "there was a version that answered"
        assert self.open == {each for each in (rollout.current, rollout.canary) if each}
        assert rollout.current or not rollout.canary
        assert rollout.canary is None or rollout.canary is not rollout.current
        assert 0 <= rollout.percent < ALL_PERCENT if rollout.canary else rollout.percent == 0
        assert 0 <= rollout.strikes < MAX_STRIKES
        said = rollout.in_use()
        assert said.digest == (rollout.current.digest if rollout.current else "")
        assert said.canary_version == (rollout.canary.version if rollout.canary else "")
        assert bool(said.reason) == bool(said.refused)


AnyOrder.TestCase.settings = settings(examples(60), stateful_step_count=30)
test_any_order = pytest.mark.timeout(120)(AnyOrder.TestCase)
