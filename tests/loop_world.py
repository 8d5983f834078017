"""A simulated service for the learning loop: models are numbers, frames are drawn at random, time is an argument.

A model has an accuracy for each kind of stream. The world gives the loop what nodes would report, and does what
``desired_loop`` requires: it trains, compares, and serves a canary. All decisions are made by
``halimede.learning_loop``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from halimede.api.learning_loop import LoopSettings
from halimede.learning_loop import states
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.gate import Evidence, StratumCounts
from halimede.learning_loop.states import EvidenceReport, LoopFacts, LoopState, TrainingReport
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts

#: frames in one step, seconds of one step, and the share of easy frames that is audited
FRAMES, STEP_S, AUDITS = 200, 20.0, 0.05
FAST = Estimate(1.0, 0.9, 1.1)


@dataclass(frozen=True)
class SimulatedModel:
    """A version: its accuracy on easy frames by the kind of stream; ``hard``: the share of frames it finds hard."""

    version: str
    accuracy: dict[str, float]
    hard: dict[str, float]
    error: str = ""
    milliseconds: float = 1.0


@dataclass
class LoopWorld:
    """A service with its present model. ``train`` makes the candidate of a round from the kinds it was trained on."""

    present: SimulatedModel
    train: Callable[[int, list[str]], SimulatedModel | str]
    settings: LoopSettings
    seed: int = 0
    kind: str = "as before"
    loop: LoopState = field(default_factory=LoopState)
    now_s: float = 0.0
    canary: SimulatedModel | None = None
    drifting: bool = False
    labelled: int = 0
    easy: int = 0
    command: int = 0
    counts: VersionCounts = field(default_factory=VersionCounts)
    canary_counts: VersionCounts = field(default_factory=VersionCounts)
    training: TrainingReport | None = None
    evidence: EvidenceReport | None = None
    #: share of frames that a version answered in each step
    canary_share: list[float] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    known: dict[str, SimulatedModel] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.known[self.present.version] = self.present

    def run(self, steps: int) -> None:
        """Let frames come and the loop step."""
        for _ in range(steps):
            self._frames()
            self.now_s += STEP_S
            self._nodes()
            before = self.loop.state
            self.loop = states.step(self.loop, self.facts(), self.settings, self.now_s)
            if self.loop.state != before:
                self.passed.append(self.loop.state)

    def until(self, state: str, steps: int = 2000) -> None:
        for _ in range(steps):
            if self.loop.state == state:
                return
            self.run(1)
        raise AssertionError(f"{self.loop.state}, not {state}: {self.loop.message}")

    def facts(self) -> LoopFacts:
        canary = self.canary
        return LoopFacts(
            drifting=self.drifting,
            present=self.present.version,
            canary=canary.version if canary else "",
            counts=self.counts,
            canary_counts=self.canary_counts,
            labelled=self.labelled,
            easy=self.easy,
            command=self.command,
            training=self.training,
            evidence=self.evidence,
        )

    def _frames(self) -> None:
        wanted = states.desired_loop(self.loop, self.settings)
        part = wanted.percent / 100 if self.canary else 0.0
        self.canary_share.append(part)
        tried = round(FRAMES * part)
        if self.canary and tried:
            self.canary_counts = self._answered(self.canary_counts, self.canary, tried)
        self.counts = self._answered(self.counts, self.present, FRAMES - tried)
        self.kinds = [*self.kinds, self.kind][-20:]

    def _answered(self, before: VersionCounts, model: SimulatedModel, frames: int) -> VersionCounts:
        hard = self._drawn(frames, model.hard[self.kind])
        audited = self._drawn(frames - hard, AUDITS)
        self.labelled += hard + audited
        self.easy += audited
        return VersionCounts(
            answered=before.answered + frames,
            hard=before.hard + hard,
            audited=before.audited + audited,
            agreed=before.agreed + self._drawn(audited, model.accuracy[self.kind]),
        )

    def _nodes(self) -> None:
        """Do what should run now."""
        wanted = states.desired_loop(self.loop, self.settings)
        if wanted.round and (self.training is None or self.training.round != wanted.round):
            model = self.train(wanted.round, self.kinds)
            if isinstance(model, str):
                self.training = TrainingReport(round=wanted.round, error=model)
            else:
                self.known[model.version] = model
                self.training = TrainingReport(round=wanted.round, version=model.version)
        if wanted.judge and (self.evidence is None or self.evidence.version != wanted.judge):
            self.evidence = EvidenceReport(version=wanted.judge, evidence=self._compared(self.known[wanted.judge]))
        if wanted.percent == 100:
            self.present, self.canary = self.known[wanted.canary], None
        else:
            self.canary = self.known[wanted.canary] if wanted.canary else None

    def _compared(self, candidate: SimulatedModel) -> Evidence:
        if candidate.error:
            return Evidence(error=candidate.error)
        strata = [
            StratumCounts(name=name, share=share, counts=self._pairs(candidate, self.kinds, 150))
            for name, share in (("hard", 0.3), ("easy", 0.7))
        ]
        reference = self._pairs(candidate, ["as before"], 300)
        ms = candidate.milliseconds
        return Evidence(
            strata=strata, reference=reference, candidate_ms=Estimate(ms, ms * 0.9, ms * 1.1), present_ms=FAST
        )

    def _pairs(self, candidate: SimulatedModel, kinds: list[str], of: int) -> PairedCounts:
        table = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
        for _ in range(of):
            kind, level = self.chance.choice(kinds), self.chance.random()
            # mostly the same samples are difficult for both models
            own = level if self.chance.random() < 0.7 else self.chance.random()
            table[level < candidate.accuracy[kind], own < self.present.accuracy[kind]] += 1
        return PairedCounts(
            both=table[True, True],
            candidate=table[True, False],
            present=table[False, True],
            neither=table[False, False],
        )

    def _drawn(self, of: int, share: float) -> int:
        return sum(self.chance.random() < share for _ in range(of))


def model(version: str, before: float, drifted: float, hard: float = 0.2, **more: object) -> SimulatedModel:
    """Return a model with its accuracy on the stream as before and on the drifted one."""
    kinds = {"as before": before, "drifted": drifted}
    return SimulatedModel(version, kinds, dict.fromkeys(kinds, hard), **more)  # type: ignore[arg-type]
