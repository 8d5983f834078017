"""GM's part of a learning loop in simulated time: what follows from reports, and a GM that is killed at any instant."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from halimede.api.learning_loop import CanarySettings, GateSettings, LoopSettings, TriggerSettings
from halimede.api.model import ModelSpec, ModelVersion, RolloutSpec, in_force
from halimede.learning_loop.gate import Evidence, StratumCounts
from halimede.learning_loop.states import LoopState
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
from services.gm.cluster.port import NodeReport
from services.gm.learning_loop import (
    ObservedLoop,
    ObservedService,
    ObservedTraining,
    advance,
    desired_model,
    is_training,
    seconds,
    sum_evidence,
)

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


def evidence(counts: PairedCounts, error: str = "") -> str:
    made = Evidence(
        error=error,
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
    error: str = ""
    seen: set[tuple[str, int]] = field(default_factory=set)
    states: list[str] = field(default_factory=list)
    settings: LoopSettings = SETTINGS

    def __post_init__(self) -> None:
        self.infos = [TaskInfo() for _ in range(self.nodes)]
        self.in_use = [ModelInUse(digest=BASE, version=BASE[:12]) for _ in range(self.nodes)]

    @property
    def now(self) -> str:
        return datetime.fromtimestamp(self.now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

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
        service = ObservedService.of(reports, lambda _: True)
        return ObservedLoop(service, self._training(), self.model, command=self.command)

    def _training(self) -> ObservedTraining:
        if not is_training(self.loop):
            self.trained = False
            return ObservedTraining()
        if not self.trained:
            return ObservedTraining(error=self.error)
        file = TensorFile(digest=NEW, size=10)
        compared = TrainingProgress(compared=NEW, evidence=evidence(self.gain), calibration='{"a": 1}', samples=5)
        return ObservedTraining(TrainingProgress(state="done", model=file), [compared], self.error, self.pulled)

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
                self.seen.add((version, part))
                easy, audited = part, round(part * share)
                agreed = round(audited * self.agrees.get(version, 0.0))
                tried = version == used.canary_version
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
                assert easy >= 0
        if is_training(self.loop):
            self.trained = not self.error

    def _follow(self, i: int, force: ModelSpec, percent: int) -> None:
        version, digest = force.target_version or BASE[:12], force.sha256 or BASE
        used = self.in_use[i]
        if digest == used.digest:
            self.in_use[i] = ModelInUse(
                digest=digest, version=version, refused=used.refused if used.refused == digest else ""
            )
        elif self.refuses:
            self.in_use[i] = ModelInUse(
                digest=used.digest, version=used.version, refused=digest, reason="CanaryFailed", message=self.refuses
            )
        elif percent < 100:
            self.in_use[i] = ModelInUse(digest=used.digest, version=used.version, canary_version=version)
        else:
            self.in_use[i] = ModelInUse(digest=digest, version=version)

    def reconcile(self, actions: int = 9) -> None:
        """Do the first ``actions`` of one reconciliation; a killed GM does fewer."""
        observed = self.observed()
        if observed.training.model and not self.pulled:
            if not actions:
                return
            self.pulled, actions = True, actions - 1
        change = desired_model(self.loop, observed, JOB, self.settings, KNOWN)
        if change is not None:
            if not actions:
                return
            self.model, actions = change, actions - 1
        following = advance(self.loop, observed, JOB, self.settings, self.now)
        if following != self.loop and actions:
            self.loop = following
            if not self.states or self.states[-1] != following.state:
                self.states.append(following.state)

    def run(self, rounds: int = 200, kills: random.Random | None = None) -> None:
        for _ in range(rounds):
            self.nodes_work()
            self.now_s += STEP_S
            self.reconcile(kills.randrange(4) if kills else 9)
            if self.loop.history and self.loop.state == "Collecting":
                self.drifting = False
                self.reconcile()
                return


ROUND = ["Collecting", "Labelling", "Training", "Judging", "Canary", "RolledOut", "Collecting"]


def test_a_better_candidate_becomes_the_version_of_all_nodes_step_by_step() -> None:
    world = World()
    world.run()
    assert world.states[-6:] == ROUND[1:]
    assert {used.version for used in world.in_use} == {CANDIDATE}
    assert world.model.target_version == CANDIDATE
    assert [each.version for each in world.model.versions] == [BASE[:12], CANDIDATE]
    assert world.model.versions[1] == ModelVersion(
        version=CANDIDATE, url=f"bus://gm/sha256/{NEW}", sha256=NEW, calibration='{"a": 1}'
    )
    assert world.model.rollout is None
    (record,) = world.loop.history
    assert (record.outcome, record.version, record.trigger) == ("RolledOut", CANDIDATE, "Drift")
    assert record.before is not None
    assert record.after is not None
    assert record.before.value < record.after.value


@pytest.mark.parametrize("seed", range(40))
def test_a_gm_that_is_killed_between_any_two_actions_ends_in_the_same_state(seed: int) -> None:
    world, other = World(), World()
    world.run(2000, random.Random(seed))
    other.run()
    assert world.model == other.model
    assert world.in_use == other.in_use
    assert [each.outcome for each in world.loop.history] == ["RolledOut"]
    # nothing was done twice
    assert (world.loop.round, world.loop.candidates, world.loop.rolled_out) == (1, 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_candidate_that_the_gate_refuses_answers_no_sample_and_leaves_the_model(seed: int) -> None:
    world = World(gain=BAD)
    world.run(2000, random.Random(seed))
    assert world.loop.history[0].reason == "CandidateWorse"
    assert CANDIDATE not in {version for version, _ in world.seen}
    assert CANDIDATE not in [each.version for each in world.model.versions]
    assert in_force(world.model).sha256 in {"", BASE}


@pytest.mark.parametrize("seed", range(20))
def test_a_canary_whose_audits_are_worse_is_withdrawn_and_never_answers_all_samples(seed: int) -> None:
    world = World(agrees={BASE[:12]: 0.9, CANDIDATE: 0.3})
    world.run(3000, random.Random(seed))
    record = world.loop.history[0]
    assert (record.outcome, record.reason) == ("Withdrawn", "CanaryAuditsWorse")
    assert (CANDIDATE, 20) in world.seen
    assert (CANDIDATE, 100) not in world.seen
    assert {(used.version, used.canary_version) for used in world.in_use} == {(BASE[:12], "")}
    assert CANDIDATE not in [each.version for each in world.model.versions]


def test_a_candidate_that_a_worker_refuses_is_withdrawn_with_its_reason() -> None:
    world = World(refuses="it fails on everything")
    world.run()
    record = world.loop.history[0]
    assert (record.reason, record.message) == ("CanaryFailed", "CanaryFailed: it fails on everything")
    assert world.model.target_version == BASE[:12]


def test_a_training_that_fails_ends_the_round_with_its_reason() -> None:
    world = World(error="DatasetOneClass: all kept samples have one class")
    world.run()
    record = world.loop.history[0]
    assert (record.outcome, record.reason) == ("Withdrawn", "TrainingFailed")
    assert "one class" in record.message
    assert world.model == ModelSpec(url="/small.onnx", format="onnx")


def test_a_version_that_somebody_else_puts_in_force_ends_the_round() -> None:
    world = World()
    while world.loop.state != "Canary":
        world.nodes_work()
        world.now_s += STEP_S
        world.reconcile()
    theirs = ModelVersion(version="mine", url="/mine.onnx", sha256="c" * 64)
    world.model = msgspec.structs.replace(
        world.model, versions=[*world.model.versions, theirs], target_version="mine", rollout=None
    )
    world.run()
    assert world.loop.history[0].reason == "Superseded"
    assert world.model.target_version == "mine"
    assert CANDIDATE not in [each.version for each in world.model.versions]


@pytest.mark.parametrize("state", ["Canary", "RolledOut"])
@pytest.mark.parametrize("undo", ["rollback", "manifest"])
def test_a_user_who_takes_the_candidate_out_of_force_ends_the_round(state: str, undo: str) -> None:
    world = World()
    while world.loop.state != state:
        world.nodes_work()
        world.now_s += STEP_S
        world.reconcile()
    world.reconcile()
    world.reconcile()
    assert world.model.target_version == CANDIDATE
    back = msgspec.structs.replace(world.model, target_version=BASE[:12])
    theirs = back if undo == "rollback" else ModelSpec(url="/small.onnx", format="onnx")
    world.model = theirs
    world.reconcile()
    assert world.model.target_version == theirs.target_version
    assert world.loop.reason == "Superseded"
    assert world.loop.state == ("Withdrawn" if state == "Canary" else "Collecting")


def test_a_share_of_audits_that_the_user_set_stays_and_that_of_the_loop_ends() -> None:
    world = World(model=ModelSpec(url="/small.onnx", format="onnx", rollout=RolloutSpec(audit_share=0.05)))
    world.run(1)
    assert world.model.rollout == RolloutSpec(audit_share=0.05)
    world = World()
    for _ in range(4):
        world.nodes_work()
        world.now_s += STEP_S
        world.reconcile()
    assert world.model.rollout == RolloutSpec(audit_share=0.2)
    world.run()
    assert world.model.rollout is None


@pytest.mark.parametrize("gain", [GOOD, BAD])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.3])
def test_the_settings_of_a_rollout_that_the_user_set_hold_again_after_the_round(
    gain: PairedCounts, share: float
) -> None:
    mine, shares = RolloutSpec(audit_share=share, canary_percent=30), set()
    world = World(gain=gain, model=ModelSpec(url="/small.onnx", format="onnx", rollout=mine))
    while not world.loop.history or world.loop.state != "Collecting":
        world.run(1)
        assert world.model.rollout
        shares.add(world.model.rollout.audit_share)
    assert shares == {share, max(share, 0.2)}
    assert world.model.rollout == mine
    world.run(1)
    later = RolloutSpec(audit_share=0.2, canary_percent=50)
    world.model = msgspec.structs.replace(world.model, rollout=later)
    world.run(3)
    assert world.model.rollout == later


def test_a_command_starts_a_round_without_drift_and_only_once() -> None:
    world = World(
        drifting=False, gain=BAD, settings=msgspec.structs.replace(SETTINGS, triggers=TriggerSettings(drift=False))
    )
    world.run(5)
    assert world.loop.state == "Collecting"
    world.command = 1
    world.run()
    assert [each.trigger for each in world.loop.history] == ["Command"]
    world.run(20)
    assert world.loop.round == 1


def test_evidence_of_two_nodes_is_added_up() -> None:
    one, two = (msgspec.json.decode(evidence(counts), type=Evidence) for counts in (GOOD, BAD))
    both = sum_evidence(
        [one, msgspec.structs.replace(two, groups={"class 1": BAD}, reference=GOOD, candidate_ms=Estimate(9, 8, 10))]
    )
    assert sum(each.share for each in both.strata) == pytest.approx(1)
    assert len(both.strata) == 4
    assert both.groups == {"class 1": BAD}
    assert both.reference == GOOD
    assert both.candidate_ms == Estimate(9, 8, 10)
    assert sum_evidence([one, Evidence(error="no")]).error == "no"
    assert sum_evidence([one, Evidence()]).candidate_ms is None


def test_workers_that_use_different_versions_have_no_present_one() -> None:
    world = World()
    world.in_use[0] = ModelInUse(digest=NEW, version="other")
    assert world.observed().service.present == ""


def test_evidence_that_cannot_be_read_refuses_the_candidate(monkeypatch: Any) -> None:
    world = World()
    monkeypatch.setattr("tests.unit.gm.test_learning_loop.evidence", lambda *_: "{")
    world.run()
    assert world.loop.history[0].reason == "CandidateNotLoaded"


def test_no_round_begins_while_the_workers_use_different_versions() -> None:
    world = World(command=1)
    world.in_use[0] = ModelInUse(digest=NEW, version="other")
    world.reconcile()
    assert world.loop.state == "Collecting"
    world.in_use[0] = world.in_use[1]
    world.reconcile()
    assert world.loop.state == "Labelling"


def test_a_clock_that_was_years_ahead_does_not_stop_the_loop() -> None:
    now = "2026-11-27T12:00:00Z"
    ahead = LoopState(
        state="Training", since_s=seconds("2040-01-01T00:00:00Z"), begins_s=seconds("2040-01-01T00:00:00Z")
    )
    found = advance(ahead, ObservedLoop(), "job", SETTINGS, now)
    assert found.since_s == found.begins_s == seconds(now)
