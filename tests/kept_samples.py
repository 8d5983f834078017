"""A store of kept samples as an edge worker writes it: drifted digits, answered by a small model and a sure big one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.frames import new_frame
from halimede.hard_samples.store import HardSampleStore, describe, picture
from halimede.hard_samples.stream_counts import MiningSettings, StreamCounts, write_mining
from halimede.inference.file_model import FileModel, open_file
from halimede.messages import Frame, Prediction, Result
from halimede.mining import create, judge
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import Weights
from tests.training_world import LABELS, digits

SPEC = ModelSpec(
    url="/", format="onnx", labels=LABELS, postprocess=Postprocess(task="classification", output="probabilities")
)
MINING = MiningSettings(rule="Margin", parameters={"threshold_margin": "0.6"}, target_upload_ratio=0.2)
SHARE = 0.25


def trained(
    rows: NDArray[np.float32], labels: NDArray[np.int64], path: Path, hidden: str = "32"
) -> tuple[Weights, FileModel]:
    """Train a small model, write its file, and open it."""
    trainer = Perceptron(hidden=hidden, epochs="20")
    weights, _ = trainer.train(TrainingData(rows, labels, 10), trainer.initial_weights((64,), 10))
    trainer.export(weights, path)
    return weights, open_file(path, SPEC)


def drifted(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return dark digits on a bright ground."""
    return (1 - rows).astype(np.float32)


def sure(label: str, confidence: float = 0.97) -> Prediction:
    """Return a big model's answer."""
    rest = (1 - confidence) / 9
    rows = [confidence if each == label else rest for each in LABELS]
    return Prediction(label=label, score=confidence, probabilities=rows)


class KeptStore:
    """A store of kept samples, and the counts of the stream that they come from."""

    def __init__(self, folder: Path) -> None:
        self.samples, self.stream = HardSampleStore(folder, 10**9, 100_000), StreamCounts(folder)

    def add(
        self,
        frame: Frame,
        answer: Prediction,
        now_ns: int,
        *,
        edge: Prediction | None = None,
        version: str = "v1",
        audit: bool = False,
        by: Any = "cloud",
    ) -> None:
        """Store the next tier's answer to a hard frame, or to an audited easy one."""
        result = Result(
            id=frame.id.hex(), service="s", camera="cam", by=by, hard=not audit, audit=audit, label=answer.label,
            score=answer.score, prediction=answer, worker="c", model="big",
        )  # fmt: skip
        sample = describe(
            result, edge or answer, namespace="default", now_ns=now_ns, model=version, digest="", audit_share=SHARE
        )
        sample.image, data = picture(frame)
        self.samples.add(sample, data)


def keep(
    folder: Path,
    small: FileModel,
    rows: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    first_ns: int = 10**18,
    version: str = "v1",
    cloud: Any = sure,
) -> dict[str, int]:
    """Answer rows as a worker does, and store the hard ones and a share of the easy ones; return the counts."""
    store = KeptStore(folder)
    miner, chance = create(MINING.rule, MINING.parameters), np.random.default_rng(0)
    found = {"hard": 0, "easy": 0, "audited": 0}
    for i, (row, label, edge) in enumerate(zip(rows, labels, small.predict(list(rows)), strict=True)):
        hard = judge(miner, edge).hard
        store.stream.observe(version, SHARE, first_ns / 1e9 + i, hard=hard)
        found["hard" if hard else "easy"] += 1
        if not hard and chance.random() >= SHARE:
            continue
        found["audited"] += not hard
        frame, answer = new_frame(row, camera="cam"), cloud(LABELS[label])
        store.add(frame, answer, first_ns + i * 10**9, edge=edge, version=version, audit=not hard)
    store.stream.save()
    write_mining(folder, MINING)
    return found


def halves() -> tuple[tuple[NDArray[np.float32], NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Return the digits of the first training, and those of the stream."""
    rows, labels = digits()
    return (rows[:600], labels[:600]), (rows[600:], labels[600:])
