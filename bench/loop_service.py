"""A service in simulated time for ``bench.loop``: real models, mining, audits, drift, gate, canary and loop.

Simulated are only the frames' times and the network. The small and the big model are ONNX files that the shipped
trainer wrote and the shipped runtime answers with. Mining, upload policy, calibration, labels, sampling and the loop's
state machine are the shipped modules.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench.loop_data import BEFORE, CLASSES, DataSet, Drawn, Floats, Labels
from halimede.api.learning_loop import CanarySettings, LoopSettings, TriggerSettings
from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.calibration.calibrate import Goal, fit
from halimede.calibration.temperature import temperature
from halimede.evaluation.data import LabelledSamples
from halimede.inference.file_model import open_file
from halimede.learning_loop import states
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.comparison import HeldOut, ReferenceSamples, compare
from halimede.learning_loop.labels import LabelSettings, sure_label
from halimede.learning_loop.sampling import LabelledSample, StratumName, is_held_out, resample_indices, split, weights
from halimede.learning_loop.states import EvidenceReport, LoopFacts, LoopState, TrainingReport
from halimede.messages import Prediction
from halimede.mining import Miner, create, hardness_of, judge
from halimede.mining.calibration_file import CalibrationFile
from halimede.pipeline.upload_policy.audit import Audits
from halimede.pipeline.upload_policy.drift import Drift
from halimede.pipeline.upload_policy.policy import UploadDecision, UploadPolicy
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import Weights

#: share of frames that the calibration aims to upload, share of easy frames that is audited
BUDGET, AUDIT_SHARE = 0.2, 0.05
#: frames of one step, and their seconds: 10 frames a second
FRAMES, STEP_S = 100, 10.0
#: samples of the first training and of later ones, and the part of these from the first training set: a reminder of
#: the stream as it was
FIRST, TRAINED, REPLAY = 2000, 4000, 0.3
#: the newest samples that a node keeps, and the share of groups that judge
MOST_KEPT, HELD_OUT = 10_000, 0.3
#: samples of the reference that a candidate must not forget, and of a measurement
REFERENCE, MEASURED = 1200, 2000
LABELS = [str(i) for i in range(CLASSES)]
SETTINGS = LoopSettings(triggers=TriggerSettings(samples=2000), canary=CanarySettings(percent=20))
SPEC = ModelSpec(
    url="/", format="onnx", labels=LABELS, postprocess=Postprocess(task="classification", output="probabilities")
)
SMALL, BIG = "32", "256,128"
#: samples of each kind of stream that the big model learns from
BIG_TRAINED = 6000


@dataclass
class Version:
    """A version of the small model: its file, its weights, and its calibration."""

    name: str
    weights: Weights
    model: Any
    miner: Miner
    calibration: CalibrationFile


@dataclass(frozen=True)
class Measured:
    """Shares on test samples: right answers of the edge alone, of the service, and of it at the budget; and uploads.

    At the budget the hardest samples go up, as many as the budget allows: drift buys no accuracy by uploads.
    """

    edge: float
    service: float
    at_budget: float
    uploads: float


@dataclass
class Kept:
    """A kept sample: its pixels, and when it was kept. Without a sure label it only helps to calibrate."""

    sample: LabelledSample
    pixels: Floats
    second: float


class Models:
    """The models of one data set and seed, which all its drifts share."""

    def __init__(self, data: DataSet, folder: Path, seed: int, kinds: tuple[str, ...]) -> None:
        self.data, self.folder, self.seed = data, folder, seed
        self.chance = np.random.default_rng(seed)
        self._tests: dict[str, tuple[Drawn, list[Prediction]]] = {}
        self.small = Perceptron(hidden=SMALL, epochs="20")
        # a big model is one that was trained on all that may come
        big = Perceptron(hidden=BIG, epochs="8", batch="64")
        drawn = [data.draw("first", kind, BIG_TRAINED, self.chance) for kind in (BEFORE, *kinds)]
        all_samples = np.concatenate([part.samples for part in drawn])
        all_labels = np.concatenate([part.labels for part in drawn])
        shape = (data.side * data.side,)
        found, _ = big.train(TrainingData(all_samples, all_labels, CLASSES, seed), big.initial_weights(shape, CLASSES))
        self.big = exported(big, found, folder / "big.onnx")
        self.first = data.draw("first", BEFORE, FIRST, self.chance)
        checked = data.draw("calibration", BEFORE, 1000, self.chance)
        rows = np.array([each.probabilities for each in self.big.predict(list(checked.samples))])
        self.labels = LabelSettings(temperature=temperature(rows, checked.labels))
        before = data.draw("calibration", BEFORE, REFERENCE, self.chance)
        self.reference = ReferenceSamples(list(before.samples), [str(label) for label in before.labels])
        data_of = TrainingData(self.first.samples, self.first.labels, CLASSES, seed)
        small, _ = self.small.train(data_of, self.small.initial_weights(shape, CLASSES))
        self.version = self.made("1", small, checked.samples)

    def made(self, name: str, found: Weights, samples: Floats) -> Version:
        """Export weights, and calibrate them for the budget on samples that they were not trained on.

        The big model's answers are the reference: a calibration of samples with sure labels alone would find them
        easier than the stream is.
        """
        model = exported(self.small, found, self.folder / f"small-{name}.onnx")
        edge, cloud = model.predict(list(samples)), self.big.predict(list(samples))
        pictures = LabelledSamples(
            images=list(samples),
            names=[str(i) for i in range(len(samples))],
            sizes=[1] * len(samples),
        )
        artefact = fit(edge, cloud, pictures, goal=Goal(target_upload=BUDGET), rule="Margin", labels=LABELS).artefact
        return Version(name, found, model, create("Margin", artefact.parameters), artefact)

    def attainable(self, kind: str) -> Version:
        """Train with the true labels of samples of the stream: what the small model can learn of a kind at most."""
        recent = self.data.draw("stream", kind, round(TRAINED * (1 - REPLAY)), self.chance)
        again = self.chance.choice(len(self.first.labels), TRAINED - len(recent.labels))
        samples = np.concatenate([recent.samples, self.first.samples[again]])
        labels = np.concatenate([recent.labels, self.first.labels[again]])
        found, _ = self.small.train(TrainingData(samples, labels, CLASSES, self.seed), dict(self.version.weights))
        return self.made(f"attainable-{kind}", found, self.data.draw("calibration", kind, 1000, self.chance).samples)

    def measure(self, version: Version, kind: str) -> Measured:
        """Measure a version on test samples of a kind, which nothing was fitted on."""
        if kind not in self._tests:
            test = self.data.draw("test", kind, MEASURED, np.random.default_rng([self.seed, 7]))
            self._tests[kind] = (test, self.big.predict(list(test.samples)))
        test, cloud = self._tests[kind]
        edge = version.model.predict(list(test.samples))
        hard = np.array([judge(version.miner, each).hard for each in edge])
        right = np.array([each.label for each in edge]) == test.labels.astype(str)
        right_up = np.array([each.label for each in cloud]) == test.labels.astype(str)
        hardness = hardness_of(version.miner, edge)
        most = hardness > np.quantile(hardness, 1 - BUDGET)
        service, at_budget = (float(np.where(up, right_up, right).mean()) for up in (hard, most))
        return Measured(float(right.mean()), service, at_budget, float(hard.mean()))


def exported(trainer: Perceptron, found: Weights, path: Path) -> Any:
    """Write an ONNX file and open it, as a worker does."""
    trainer.export(found, path)
    return open_file(path, SPEC)


@dataclass
class Service:
    """One service under one kind of drift."""

    models: Models
    seed: int
    kind: str = BEFORE
    loop: LoopState = field(default_factory=LoopState)
    settings: LoopSettings = SETTINGS
    now_s: float = 0.0
    canary: Version | None = None
    kept: list[Kept] = field(default_factory=list)
    counts: dict[bool, VersionCounts] = field(default_factory=lambda: {False: VersionCounts(), True: VersionCounts()})
    known: dict[str, Version | Path] = field(default_factory=dict)
    training: TrainingReport | None = None
    evidence: EvidenceReport | None = None
    labelled: int = 0
    easy: int = 0
    number: int = 0
    #: counts of the stream by stratum and step, for the samples' weights
    stream: list[tuple[float, str, int, int]] = field(default_factory=list)
    #: share of frames that went up in each step
    uploads: list[float] = field(default_factory=list)
    #: samples to judge on; with those that have no label, to calibrate on
    held_out: list[Kept] = field(default_factory=list)
    unseen: list[Kept] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.present = self.models.version
        self.chance = np.random.default_rng([self.seed, 1])
        self.random = Random(self.seed)
        self.policies = {False: self._policy(self.present)}

    def run(self, steps: int) -> None:
        """Answer frames, and let the loop step."""
        for _ in range(steps):
            self._frames()
            self.now_s += STEP_S
            self._nodes()
            self.loop = states.step(self.loop, self._facts(), self.settings, self.now_s)

    @property
    def drifting(self) -> bool:
        """Whether the present version's worker reports drift."""
        drift = self.policies[False].drift
        return drift is not None and drift.drifting

    def _policy(self, version: Version) -> UploadPolicy:
        return UploadPolicy(audits=Audits(AUDIT_SHARE, self.random.random), drift=Drift(version.calibration))

    def _facts(self) -> LoopFacts:
        return LoopFacts(
            drifting=self.drifting,
            present=self.present.name,
            canary=self.canary.name if self.canary else "",
            counts=self.counts[False],
            canary_counts=self.counts[True],
            labelled=self.labelled,
            easy=self.easy,
            training=self.training,
            evidence=self.evidence,
        )

    def _frames(self) -> None:
        drawn = self.models.data.draw("stream", self.kind, FRAMES, self.chance)
        part = states.desired_loop(self.loop, self.settings).percent / 100 if self.canary else 0.0
        tried = np.array([self.random.random() < part for _ in range(FRAMES)])
        hard = 0
        for on_trial, version in ((False, self.present), (True, self.canary)):
            rows = np.flatnonzero(tried == on_trial)
            if version is not None and len(rows):
                hard += self._answered(drawn, rows, version, on_trial=on_trial)
        self.uploads.append(hard / FRAMES)

    def _answered(self, drawn: Drawn, rows: Any, version: Version, *, on_trial: bool) -> int:
        policy = self.policies[on_trial]
        if policy.audits:
            policy.audits.share = max(AUDIT_SHARE, states.desired_loop(self.loop, self.settings).audit_share)
        period = self._period(version)
        edge = version.model.predict(list(drawn.samples[rows]))
        asked: list[tuple[int, Prediction, UploadDecision]] = []
        for row, low in zip(rows, edge, strict=True):
            decision = policy.decide(judge(version.miner, low), low, 64, 10.0, self.now_s)
            if decision.ask:
                policy.ended(decision, 0.01, self.now_s, sent=True, answered=True)
                asked.append((int(row), low, decision))
        cloud = self.models.big.predict([drawn.samples[row] for row, _, _ in asked])
        hard = audited = agreed = 0
        for (row, low, decision), high in zip(asked, cloud, strict=True):
            hard += decision.up
            if decision.audit:
                audited += 1
                agreed += policy.compare(low, high)
            self._keep(drawn, row, high, "easy" if decision.audit else "hard", period)
        self.stream.append((self.now_s, period, hard, len(rows) - hard))
        before = self.counts[on_trial]
        self.counts[on_trial] = VersionCounts(
            answered=before.answered + len(rows),
            hard=before.hard + hard,
            audited=before.audited + audited,
            agreed=before.agreed + agreed,
        )
        return hard

    def _period(self, version: Version) -> str:
        """Return the name of the time in which samples were kept by the same rule."""
        return f"{version.name} {states.desired_loop(self.loop, self.settings).audit_share}"

    def _keep(self, drawn: Drawn, row: int, cloud: Prediction, stratum: StratumName, period: str) -> None:
        label = sure_label(cloud, self.models.labels)
        self.labelled += label is not None
        self.easy += label is not None and stratum == "easy"
        self.number += 1
        sample = LabelledSample(
            id=str(self.number), label=label or "", stratum=stratum, period=period, group=drawn.groups[row]
        )
        self.kept.append(Kept(sample, drawn.samples[row], self.now_s))

    # --- what nodes do for the loop ------------------------------------------------------------------------------

    def _nodes(self) -> None:
        wanted = states.desired_loop(self.loop, self.settings)
        if wanted.round and (self.training is None or self.training.round != wanted.round):
            self._train(wanted.round, wanted.begins_s)
        if wanted.judge and (self.evidence is None or self.evidence.version != wanted.judge):
            held = [HeldOut(each.sample, each.pixels) for each in self.held_out]
            candidate = self.known[wanted.judge]
            found = compare(
                lambda: candidate.model if isinstance(candidate, Version) else open_file(candidate, SPEC),
                self.present.model,
                held,
                self.strata(wanted.begins_s),
                self.models.reference,
            )
            self.evidence = EvidenceReport(version=wanted.judge, evidence=found)
        if wanted.percent == 100 and self.present.name != wanted.canary:
            self.present, self.canary = opened(self.known[wanted.canary]), None
            self.policies = {False: self._policy(self.present)}
        elif wanted.canary and wanted.percent < 100 and self.canary is None:
            self.canary = opened(self.known[wanted.canary])
            self.policies[True] = self._policy(self.canary)
        elif not wanted.canary:
            self.canary = None

    def fork(self) -> Service:
        """Return a copy that goes on for itself."""
        found = copy(self)
        found.kept, found.stream, found.uploads = list(self.kept), list(self.stream), list(self.uploads)
        found.counts, found.known = dict(self.counts), dict(self.known)
        found.policies = {False: self._policy(self.present)}
        return found

    def strata(self, begins_s: float) -> dict[tuple[str, StratumName], int]:
        """Return the frames of each stratum and period since a time."""
        found: Counter[tuple[str, StratumName]] = Counter()
        for second, period, hard, easy in self.stream:
            if second >= begins_s:
                found[period, "hard"] += hard
                found[period, "easy"] += easy
        return found

    def training_set(self, begins_s: float) -> tuple[Floats, Labels]:
        """Return the recent samples as the stream has them, with a share of the first training set."""
        recent = {each.sample.id: each for each in self.kept[-MOST_KEPT:] if each.second >= begins_s}
        size = round(TRAINED * (1 - REPLAY))
        labelled = [each.sample for each in recent.values() if each.sample.label]
        found = split(labelled, self.strata(begins_s), size=size, seed=self.loop.round)
        self.held_out = [recent[sample.id] for sample in found.held_out]
        self.unseen = [each for each in recent.values() if is_held_out(each.sample.group, HELD_OUT)]
        again = self.chance.choice(len(self.models.first.labels), TRAINED - size)
        samples = np.concatenate([[recent[id_].pixels for id_ in found.training], self.models.first.samples[again]])
        labels = [int(recent[id_].sample.label) for id_ in found.training]
        return samples.astype(np.float32), np.concatenate([labels, self.models.first.labels[again]]).astype(np.int64)

    def _train(self, round_: int, begins_s: float) -> None:
        samples, labels = self.training_set(begins_s)
        data = TrainingData(samples, labels, CLASSES, self.seed * 100 + round_)
        found, _ = self.models.small.train(data, dict(self.present.weights))
        name = f"{self.kind.replace(' ', '-')}-{round_ + 1}"
        self.known[name] = self.calibrated(name, found)
        self.training = TrainingReport(round=round_, version=name)

    def calibrated(self, name: str, found: Weights) -> Version:
        """Calibrate a candidate on samples that it was not trained on, repeated as the stream has them."""
        of = weights(self.strata(self.loop.begins_s), [each.sample for each in self.unseen])
        chosen = resample_indices(of, 1000, self.seed)
        return self.models.made(name, found, np.array([self.unseen[i].pixels for i in chosen]))


def opened(version: Version | Path) -> Version:
    """Return a version that passed the gate: it could be opened there."""
    assert isinstance(version, Version), "a file that cannot be opened passes no gate"
    return version
