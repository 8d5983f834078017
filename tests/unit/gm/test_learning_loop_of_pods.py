"""A loop where workers are pods, in simulated time: an update replaces one pod after another."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import msgspec
import pytest

from halimede.api.model import ModelSpec, RolloutSpec, in_force
from halimede.messages import ModelInUse
from services.gm.learning_loop import ObservedLoop
from tests.unit.gm.test_learning_loop import BASE, CANDIDATE, NEW, ROUND, STEP_S, World

AUDITED = 0.2
MINE = ModelSpec(url="/small.onnx", format="onnx", rollout=RolloutSpec(canary_percent=30))


@dataclass
class Pods(World):
    """As a world of nodes, but a worker answers with one version, until an update replaces its pod."""

    #: steps between the updates of two pods
    pace: int = 3
    broken: bool = False
    steps: int = 0
    #: steps in which two versions were in use
    mixed: int = 0

    def observed(self) -> ObservedLoop:
        waiting = self.broken and in_force(self.model).target_version == CANDIDATE
        why = "CrashLoopBackOff: pod edge-1: ModelInvalid: no model" if waiting else ""
        return replace(super().observed(), as_pods=True, pods_error=why)

    def nodes_work(self) -> None:
        self.steps += 1
        force = in_force(self.model)
        due = self.steps % self.pace == 0
        for i, info in enumerate(self.infos):
            digest = force.sha256 or BASE
            if self.in_use[i].digest == digest or (due and not self.broken):
                due = due and self.in_use[i].digest == digest
                self.in_use[i] = ModelInUse(digest=digest, version=force.target_version or BASE[:12])
            version, audited = self.in_use[i].version, round(100 * AUDITED)
            self.seen.add((version, 100))
            info.inference_number += 200
            info.hard_example_number += 100
            info.audited += audited
            info.audit_agreed += round(audited * self.agrees.get(version, 0.0))
            info.labelled += 50 + audited
            info.labelled_easy += audited
        self.mixed += len({used.version for used in self.in_use}) > 1
        self.trained = not self.error and self.loop.state in {"Training", "Judging"}


def test_a_candidate_replaces_the_present_version_and_is_rolled_out_by_audits_of_both() -> None:
    world = Pods()
    world.run()
    assert world.states[-6:] == ROUND[1:]
    assert world.mixed > 0
    assert {used.version for used in world.in_use} == {CANDIDATE}
    assert world.model.target_version == CANDIDATE
    assert world.model.rollout is None, "shares are not for pods"
    (record,) = world.loop.history
    assert (record.outcome, record.reason) == ("RolledOut", "CanaryAuditsHold")
    assert record.before is not None
    assert record.after is not None
    # of hard samples all agree, and of the easy half what the audits of that version show
    assert record.before.value == pytest.approx(0.85)
    assert record.after.value == pytest.approx(0.975)


@pytest.mark.parametrize("seed", range(40))
def test_a_gm_that_is_killed_between_any_two_actions_ends_in_the_same_state(seed: int) -> None:
    world, other = Pods(), Pods()
    world.run(3000, random.Random(seed))
    other.run()
    assert (world.model, world.in_use) == (other.model, other.in_use)
    assert [each.outcome for each in world.loop.history] == ["RolledOut"]
    assert (world.loop.round, world.loop.candidates, world.loop.rolled_out) == (1, 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_candidate_whose_audits_are_worse_is_withdrawn_and_all_pods_get_the_version_before(seed: int) -> None:
    world = Pods(agrees={BASE[:12]: 0.9, CANDIDATE: 0.3})
    world.run(3000, random.Random(seed))
    (record,) = world.loop.history
    assert (record.outcome, record.reason) == ("Withdrawn", "CanaryAuditsWorse")
    assert record.before is not None
    assert record.before.value == pytest.approx(0.95), "the candidate's samples are not those of the version before"
    assert (CANDIDATE, 100) in world.seen
    assert {used.version for used in world.in_use} == {BASE[:12]}
    assert (world.model.target_version, CANDIDATE in str(world.model.versions)) == (BASE[:12], False)


def test_samples_that_are_answered_while_both_versions_are_in_use_count_for_neither() -> None:
    """During a slow update the old version still answers well: that must not prove the new one."""
    world = Pods(agrees={BASE[:12]: 1.0, CANDIDATE: 0.0}, pace=40)
    world.run(400)
    assert world.mixed > 20
    assert world.loop.history[0].reason == "CanaryAuditsWorse"
    world = Pods(agrees={BASE[:12]: 0.0, CANDIDATE: 1.0}, pace=40)
    world.run(400)
    assert world.loop.history[0].reason == "CanaryAuditsHold"


def test_a_candidate_whose_pods_cannot_run_is_withdrawn_with_their_reason() -> None:
    world = Pods(broken=True)
    world.run()
    (record,) = world.loop.history
    assert record.reason == "CanaryFailed"
    assert record.message == "CrashLoopBackOff: pod edge-1: ModelInvalid: no model"
    assert world.model.target_version == BASE[:12]
    assert (CANDIDATE, 100) not in world.seen


def test_the_present_version_has_its_name_before_the_training_whose_pods_it_would_replace() -> None:
    world = Pods(model=MINE)
    while world.loop.state != "Training":
        world.nodes_work()
        world.now_s += STEP_S
        world.reconcile()
    assert world.model == msgspec.structs.replace(MINE, versions=world.model.versions, target_version=BASE[:12])
    force = in_force(world.model)
    assert (force.url, force.sha256) == ("/small.onnx", BASE)
    while world.loop.state != "Canary":
        assert in_force(world.model) == force
        world.nodes_work()
        world.now_s += STEP_S
        world.reconcile()
    assert [each.sha256 for each in world.model.versions] == [BASE, NEW]


def test_another_version_in_use_than_the_two_of_a_round_ends_it() -> None:
    world = Pods()
    while world.loop.state != "Canary":
        world.nodes_work()
        world.now_s += STEP_S
        world.reconcile()
    world.in_use = [ModelInUse(digest="c" * 64, version="mine") for _ in world.in_use]
    world.reconcile()
    assert world.loop.history[0].reason == "Superseded"
