"""Bad candidates of a learning loop, compared by a trainer's child process and judged by GM's state machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from halimede.api.learning_loop import GateSettings, LoopSettings
from halimede.learning_loop import gate, states
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.states import EvidenceReport, LoopFacts, LoopState
from halimede.training.child_process import run_step
from halimede.training.kept_data import read_kept
from halimede.training.settings import JobSettings, TrainingSettings
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.worker.settings import WorkerSettings
from tests.bad_trainers import Broken, Slow, Worse, WrongLabels
from tests.kept_samples import SPEC, halves, keep, trained

pytestmark = pytest.mark.timeout(300)
#: the longest median time of an answer: far above that of a small model, far below that of the slow one
DEADLINE_MS = 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the present model, and the store of an edge worker after a drift."""
    made = tmp_path_factory.mktemp("loop")
    (first, first_labels), (rows, labels) = halves()
    _, small = trained(first, first_labels, made / "present.onnx")
    keep(made / "hard", small, 0.4 * rows + 0.6, labels)  # lighter, so that it is partly right
    return made


def settings(folder: Path, state: Path) -> TrainingSettings:
    worker = WorkerSettings(
        role="edge", namespace="default", service="again", worker="t0", node="edge0", uid="u-1", model=SPEC,
        model_path=str(folder / "present.onnx"), estimator="", broker="", state=state, period_s=1, grace_s=1,
    )  # fmt: skip
    return TrainingSettings(worker, JobSettings(trainers={"t0": "edge0"}), folder / "hard")


async def judged(trainer: Perceptron, folder: Path, tmp_path: Path) -> LoopState:
    """Train a candidate, let a trainer compare it, and let the loop decide."""
    data = read_kept(folder / "hard", SPEC).node.train
    found, _ = trainer.train(TrainingData(data.samples, data.labels, 10), trainer.initial_weights((64,), 10))
    trainer.export(found, tmp_path / "candidate.onnx")
    result = await run_step(settings(folder, tmp_path), "compare", candidate=str(tmp_path / "candidate.onnx"))
    assert result.reason == "", result.message
    evidence = msgspec.json.decode(result.evidence, type=Evidence)
    loop = LoopState(state="Judging", round=1, version="2", base="1")
    facts = LoopFacts(present="1", evidence=EvidenceReport(version="2", evidence=evidence))
    return states.step(
        loop, facts, LoopSettings(gate=GateSettings(least=50, least_stratum=5, most_ms=DEADLINE_MS)), 1.0
    )


async def test_a_good_candidate_becomes_the_canary(folder: Path, tmp_path: Path) -> None:
    loop = await judged(Perceptron(hidden="32", epochs="20"), folder, tmp_path)
    assert (loop.state, loop.reason) == ("Canary", gate.ACCEPTED)


@pytest.mark.parametrize(
    ("trainer", "reason", "part"),
    [
        (Worse, gate.WORSE, "its whole interval must be above 0"),
        (WrongLabels, gate.WORSE, "its whole interval must be above 0"),
        (Broken, gate.NOT_LOADED, "candidate.onnx"),
        (Slow, gate.TOO_SLOW, f"allowed are {DEADLINE_MS:g} ms"),
    ],
)
async def test_a_bad_candidate_is_refused_with_its_reason(
    trainer: type[Perceptron], reason: str, part: str, folder: Path, tmp_path: Path
) -> None:
    loop = await judged(trainer(hidden="32", epochs="20"), folder, tmp_path)
    assert (loop.state, loop.reason) == ("Withdrawn", reason)
    assert part in loop.message
    assert states.desired_loop(loop, LoopSettings()).canary == ""
