"""GM's part of a learning loop in simulated time: what follows from reports, and a GM that is killed at any instant.

Where workers are pods, an update replaces one pod after another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from halimede.api.learning_loop import CanarySettings, GateSettings, LoopSettings, TriggerSettings
from halimede.api.model import ModelSpec, ModelVersion, RolloutSpec, in_force
from halimede.learning_loop.gate import Evidence, StratumCounts
from halimede.learning_loop.states import LoopState, desired_loop
from halimede.messages import (
    ModelFacts,
    ModelInUse,
    NodeStatus,
    Output,
    TaskInfo,
    TensorFile,
    TrainingProgress,
    WorkerReport,
)
from halimede.names import Key
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts
from services.gm.candidate_version import desired_model
from services.gm.cluster.port import NodeReport
from services.gm.loop_facts import ObservedLoop, step, sum_evidence, unix_seconds

JOB, STEP_S = "digits", 10.0
BASE, NEW = "a" * 64, "b" * 64
CANDIDATE = f"{JOB}-{NEW[:12]}"
KNOWN = ModelFacts(digest=BASE)
SERVICE = Key("jointinferenceservices", "default", "digits")
SETTINGS = LoopSettings(
    triggers=TriggerSettings(pause_s=0.0),
    gate=GateSettings(least=50),
    canary=CanarySettings(percent=20),
    labelled=50,
    easy=20,
    least_stratum=10,
    training_s=600.0,
)
GOOD = PairedCounts(both=150, candidate=60, present=2, neither=10)
BAD = PairedCounts(both=150, candidate=2, present=60, neither=10)


def evidence(counts: PairedCounts) -> str:
    made = Evidence(
        strata=[StratumCounts(name=name, share=0.5, counts=counts) for name in ("hard", "easy")],
        candidate_ms=Estimate(1.0, 0.9, 1.1),
        present_ms=Estimate(1.0, 0.9, 1.1),
    )  # fmt: skip
    return msgspec.json.encode(made).decode()


@dataclass
class World:
    """Nodes with one edge worker each, a training, and a GM of which only the status and the Model survive."""

    gain: PairedCounts = GOOD
    #: shares of easy samples whose audits agree, by version; and of hard ones
    agrees: dict[str, float] = field(default_factory=lambda: {BASE[:12]: 0.7, CANDIDATE: 0.95})
    nodes: int = 2
    refuses: str = ""
    model: ModelSpec = field(default_factory=lambda: ModelSpec(url="/small.onnx", format="onnx"))
    loop: LoopState = field(default_factory=LoopState)
    now_s: float = 1_000_000.0
    drifting: bool = True
    command: int = 0
    trained: bool = False
    pulled: bool = False
    seen: set[tuple[str, int]] = field(default_factory=set)
    states: list[str] = field(default_factory=list)
    settings: LoopSettings = SETTINGS

    def __post_init__(self) -> None:
        self.infos = [TaskInfo() for _ in range(self.nodes)]
        self.in_use = [ModelInUse(digest=BASE, version=BASE[:12]) for _ in range(self.nodes)]

    @property
    def now(self) -> str:
        return datetime.fromtimestamp(self.now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def trains(self) -> bool:
        return bool(desired_loop(self.loop, self.settings).round)

    def observed(self) -> ObservedLoop:
        counts = [msgspec.structs.replace(info, drifting=int(self.drifting)) for info in self.infos]
        reports = [
            NodeReport(
                SERVICE, f"n{i}",
                NodeStatus(
                    phase="Running", output=Output(task_info=info),
                    workers=[WorkerReport(name=f"w{i}", role="edge", phase="Running", model=model)],
                ),
                live=True, edge=True,
            )
            for i, (info, model) in enumerate(zip(counts, self.in_use, strict=True))
        ]  # fmt: skip
        self.trained = self.trained and self.trains
        file = TensorFile(digest=NEW, size=10)
        compared = TrainingProgress(compared=NEW, evidence=evidence(self.gain), calibration='{"a": 1}', samples=5)
        return ObservedLoop(
            reports,
            lambda _: True,
            aggregator=TrainingProgress(state="done", model=file) if self.trained else None,
            trainers=[compared] if self.trained else [],
            is_pulled=self.pulled and self.trained,
            model=self.model,
            command=self.command,
        )

    def nodes_work(self) -> None:
        """Answer samples with the versions in force, and follow the Model."""
        force = in_force(self.model)
        percent = self.model.rollout.canary_percent if self.model.rollout else 100
        share = self.model.rollout.audit_share if self.model.rollout else 0.0
        for i, info in enumerate(self.infos):
            self._follow(i, force, percent)
            used = self.in_use[i]
            parts = [(used.version, 100 - (percent if used.canary_version else 0))]
            parts += [(used.canary_version, percent)] if used.canary_version else []
            for version, part in parts:
                self._answer(info, version, part, round(part * share), tried=version == used.canary_version)
        if self.trains:
            self.trained = True

    def _answer(self, info: TaskInfo, version: str, part: int, audited: int, *, tried: bool = False) -> None:
        """Count ``part`` answers to hard samples, and as many to easy ones."""
        self.seen.add((version, part))
        agreed = round(audited * self.agrees.get(version, 0.0))
        info.inference_number += 2 * part
        info.hard_example_number += part
        info.audited += audited
        info.audit_agreed += agreed
        info.labelled += part // 2 + audited
        info.labelled_easy += audited
        if tried:
            info.canary_answered += 2 * part
            info.canary_hard += part
            info.canary_audited += audited
            info.canary_agreed += agreed

    def _follow(self, i: int, force: ModelSpec, percent: int) -> None:
        version, digest = force.target_version or BASE[:12], force.sha256 or BASE
        used = self.in_use[i]
        if digest == used.digest:
            refused = digest if used.refused == digest else ""
            self.in_use[i] = ModelInUse(digest=digest, version=version, refused=refused)
        elif self.refuses:
            why = {"refused": digest, "reason": "CanaryFailed", "message": self.refuses}
            self.in_use[i] = ModelInUse(digest=used.digest, version=used.version, **why)
        elif percent < 100:
            self.in_use[i] = ModelInUse(digest=used.digest, version=used.version, canary_version=version)
        else:
            self.in_use[i] = ModelInUse(digest=digest, version=version)

    def reconcile(self, actions: int = 9) -> None:
        """Do the first ``actions`` of one reconciliation; a killed GM does fewer."""
        observed = self.observed()
        if observed.trained_model and not self.pulled:
            if not actions:
                return
            self.pulled, actions = True, actions - 1
        candidate, as_pods = observed.candidate(JOB), observed.as_pods
        change = desired_model(self.loop, self.model, self.settings, candidate, KNOWN, as_pods=as_pods)
        if change is not None:
            if not actions:
                return
            self.model, actions = change, actions - 1
        following = step(self.loop, observed, JOB, self.settings, self.now)
        if following != self.loop and actions:
            self.loop = following
            if not self.states or self.states[-1] != following.state:
                self.states.append(following.state)

    def step(self, actions: int = 9) -> None:
        self.nodes_work()
        self.now_s += STEP_S
        self.reconcile(actions)

    def run_to(self, state: str) -> None:
        while self.loop.state != state:
            self.step()

    def run(self, rounds: int = 200, kills: random.Random | None = None) -> None:
        for _ in range(rounds):
            self.step(kills.randrange(4) if kills else 9)
            if self.loop.history and self.loop.state == "Collecting":
                self.drifting = False
                self.reconcile()
                return


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
            self._answer(info, self.in_use[i].version, 100, round(100 * AUDITED))
        self.mixed += len({used.version for used in self.in_use}) > 1
        self.trained = self.loop.state in {"Training", "Judging"}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("kind", "tolerance"), [(World, 0.01), (Pods, 1e-9)])
def test_a_better_candidate_becomes_the_version_of_all_workers_step_by_step(
    kind: type[World], tolerance: float
) -> None:
    world = kind()
    world.run()
    assert world.states[-6:] == ["Labelling", "Training", "Judging", "Canary", "RolledOut", "Collecting"]
    assert {used.version for used in world.in_use} == {CANDIDATE}
    assert world.model.target_version == CANDIDATE
    assert [each.version for each in world.model.versions] == [BASE[:12], CANDIDATE]
    added = ModelVersion(version=CANDIDATE, url=f"bus://gm/sha256/{NEW}", sha256=NEW, calibration='{"a": 1}')
    assert world.model.versions[1] == added
    assert world.model.rollout is None
    (record,) = world.loop.history
    assert (record.outcome, record.version, record.trigger) == ("RolledOut", CANDIDATE, "Drift")
    assert record.reason == "CanaryAuditsHold"
    # of hard samples all agree, and of the easy half what the audits of that version show
    assert (record.before.value, record.after.value) == pytest.approx((0.85, 0.975), abs=tolerance)


@pytest.mark.parametrize("seed", range(20))
def test_a_candidate_that_the_gate_refuses_answers_no_sample_and_leaves_the_model(seed: int) -> None:
    world = World(gain=BAD)
    world.run(2000, random.Random(seed))
    assert world.loop.history[0].reason == "CandidateWorse"
    assert CANDIDATE not in {version for version, _ in world.seen}
    assert CANDIDATE not in [each.version for each in world.model.versions]
    assert in_force(world.model).sha256 in {"", BASE}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("kind", "percent", "tolerance"), [(World, 20, 0.01), (Pods, 100, 1e-9)])
def test_a_candidate_whose_audits_are_worse_is_withdrawn_and_all_workers_get_the_version_before(
    kind: type[World], percent: int, tolerance: float, seed: int
) -> None:
    world = kind(agrees={BASE[:12]: 0.9, CANDIDATE: 0.3})
    world.run(3000, random.Random(seed))
    (record,) = world.loop.history
    assert (record.outcome, record.reason) == ("Withdrawn", "CanaryAuditsWorse")
    assert record.before.value == pytest.approx(0.95, abs=tolerance), (
        "the candidate's samples are not those of the version before"
    )
    assert {part for version, part in world.seen if version == CANDIDATE} == {percent}
    assert {(used.version, used.canary_version) for used in world.in_use} == {(BASE[:12], "")}
    assert (world.model.target_version, CANDIDATE in str(world.model.versions)) == (BASE[:12], False)


@pytest.mark.parametrize(
    ("make_world", "message"),
    [
        (lambda: World(refuses="it fails on everything"), "CanaryFailed: it fails on everything"),
        (lambda: Pods(broken=True), "CrashLoopBackOff: pod edge-1: ModelInvalid: no model"),
    ],
    ids=["workers refuse", "pods cannot run"],
)
def test_a_candidate_that_cannot_run_is_withdrawn_with_the_reason(
    make_world: Callable[[], World], message: str
) -> None:
    world = make_world()
    world.run()
    (record,) = world.loop.history
    assert (record.reason, record.message) == ("CanaryFailed", message)
    assert world.model.target_version == BASE[:12]
    assert (CANDIDATE, 100) not in world.seen


def test_a_version_that_somebody_else_puts_in_force_ends_the_round(world: World) -> None:
    world.run_to("Canary")
    theirs = ModelVersion(version="mine", url="/mine.onnx", sha256="c" * 64)
    versions = [*world.model.versions, theirs]
    world.model = msgspec.structs.replace(world.model, versions=versions, target_version="mine", rollout=None)
    world.run()
    assert (world.loop.history[0].reason, world.model.target_version) == ("Superseded", "mine")
    assert CANDIDATE not in [each.version for each in world.model.versions]


@pytest.mark.parametrize("state", ["Canary", "RolledOut"])
@pytest.mark.parametrize("undo", ["rollback", "manifest"])
def test_a_user_who_takes_the_candidate_out_of_force_ends_the_round(world: World, state: str, undo: str) -> None:
    world.run_to(state)
    world.reconcile()
    world.reconcile()
    assert world.model.target_version == CANDIDATE
    back = msgspec.structs.replace(world.model, target_version=BASE[:12])
    world.model = theirs = back if undo == "rollback" else ModelSpec(url="/small.onnx", format="onnx")
    world.reconcile()
    assert (world.model.target_version, world.loop.reason) == (theirs.target_version, "Superseded")
    assert world.loop.state == ("Withdrawn" if state == "Canary" else "Collecting")


def test_the_share_of_audits_of_a_loop_ends_with_its_round(world: World) -> None:
    for _ in range(4):
        world.step()
    assert world.model.rollout == RolloutSpec(audit_share=0.2)
    world.run()
    assert world.model.rollout is None


@pytest.mark.parametrize("gain", [GOOD, BAD])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.3])
def test_the_settings_of_a_rollout_that_a_user_set_hold_again_after_the_round(gain: PairedCounts, share: float) -> None:
    mine, shares = RolloutSpec(audit_share=share, canary_percent=30), set()
    world = World(gain=gain, model=ModelSpec(url="/small.onnx", format="onnx", rollout=mine))
    while not world.loop.history or world.loop.state != "Collecting":
        world.run(1)
        shares.add(world.model.rollout.audit_share)
    assert shares == {share, max(share, 0.2)}
    assert world.model.rollout == mine
    world.run(1)
    later = RolloutSpec(audit_share=0.2, canary_percent=50)
    world.model = msgspec.structs.replace(world.model, rollout=later)
    world.run(3)
    assert world.model.rollout == later


def test_evidence_of_two_nodes_is_added_up() -> None:
    one, two = (msgspec.json.decode(evidence(counts), type=Evidence) for counts in (GOOD, BAD))
    two = msgspec.structs.replace(two, groups={"class 1": BAD}, reference=GOOD, candidate_ms=Estimate(9, 8, 10))
    both = sum_evidence([one, two])
    assert sum(each.share for each in both.strata) == pytest.approx(1)
    assert (len(both.strata), both.groups, both.reference) == (4, {"class 1": BAD}, GOOD)
    assert both.candidate_ms == Estimate(9, 8, 10)
    assert sum_evidence([one, Evidence(error="no")]).error == "no"
    assert sum_evidence([one, Evidence()]).candidate_ms is None


def test_evidence_that_cannot_be_read_refuses_the_candidate(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("tests.unit.gm.test_loop_facts.evidence", lambda *_: "{")
    world.run()
    assert world.loop.history[0].reason == "CandidateNotLoaded"


def test_a_clock_that_was_years_ahead_does_not_stop_the_loop() -> None:
    now = "2026-11-27T12:00:00Z"
    ahead_s = unix_seconds("2040-01-01T00:00:00Z")
    ahead = LoopState(state="Training", since_s=ahead_s, begins_s=ahead_s)
    found = step(ahead, ObservedLoop([], lambda _: True), "job", SETTINGS, now)
    assert found.since_s == found.begins_s == unix_seconds(now)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", [World, Pods])
def test_a_gm_that_is_killed_between_any_two_actions_ends_in_the_same_state(kind: type[World], seed: int) -> None:
    world, other = kind(), kind()
    world.run(3000, random.Random(seed))
    other.run()
    assert (world.model, world.in_use) == (other.model, other.in_use)
    assert [each.outcome for each in world.loop.history] == ["RolledOut"]
    assert (world.loop.round, world.loop.candidates, world.loop.rolled_out) == (1, 1, 1), "nothing was done twice"


def test_samples_that_are_answered_while_both_versions_are_in_use_count_for_neither() -> None:
    """During a slow update the old version still answers well: that must not prove the new one."""
    for before, after, reason in ((1.0, 0.0, "CanaryAuditsWorse"), (0.0, 1.0, "CanaryAuditsHold")):
        world = Pods(agrees={BASE[:12]: before, CANDIDATE: after}, pace=40)
        world.run(400)
        assert world.mixed > 20
        assert world.loop.history[0].reason == reason


def test_the_present_version_has_its_name_before_the_training_whose_pods_it_would_replace() -> None:
    world = Pods(model=MINE)
    world.run_to("Training")
    assert world.model == msgspec.structs.replace(MINE, versions=world.model.versions, target_version=BASE[:12])
    force = in_force(world.model)
    assert (force.url, force.sha256) == ("/small.onnx", BASE)
    while world.loop.state != "Canary":
        assert in_force(world.model) == force
        world.step()
    assert [each.sha256 for each in world.model.versions] == [BASE, NEW]


def test_another_version_in_use_than_the_two_of_a_round_ends_it() -> None:
    world = Pods()
    world.run_to("Canary")
    world.in_use = [ModelInUse(digest="c" * 64, version="mine") for _ in world.in_use]
    world.reconcile()
    assert world.loop.history[0].reason == "Superseded"
