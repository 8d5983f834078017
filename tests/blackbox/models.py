"""Models of the black-box suite: a user's estimator that a test directs, and an ONNX file with answers known before."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.graphs import FLOAT, Node, write_graph
from tests.waiting import patience

#: grey values of frames: small models of this suite are sure of EASY and unsure of HARD
EASY, HARD = 10, 150
#: a value that estimators with ``fails_at={POISON}`` raise an error for
POISON = 201
#: longest time that a test holds a model
HELD_S = patience(30.0)


class Estimator:
    """Answers with ``label``: sure (0.9 to 0.1) of frames darker than ``sure_below``, unsure (0.55 to 0.45) of others.

    ``calls`` holds the grey values of each call of the model.
    """

    def __init__(
        self, label: str, *, sure_below: int = 256, fails_at: Collection[int] = (), seconds: float = 0.0
    ) -> None:
        self.label, self.seconds = label, seconds
        self.calls: list[list[int]] = []
        self._sure_below, self._fails_at = sure_below, frozenset(fails_at)
        self._free = threading.Event()
        self._free.set()

    def predict(self, data: Any) -> dict[str, Any]:
        return self.predict_batch([data])[0]

    def predict_batch(self, batch: Sequence[Any]) -> list[dict[str, Any]]:
        values = [int(np.asarray(data).flat[0]) for data in batch]
        self.calls.append(values)
        assert self._free.wait(HELD_S)
        time.sleep(self.seconds)
        if broken := self._fails_at.intersection(values):
            raise RuntimeError(f"this picture breaks the model: {min(broken)}")
        return [self._answer(value) for value in values]

    @property
    def seen(self) -> list[int]:
        """The grey values of all calls, one after the other."""
        return [value for call in self.calls for value in call]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep calls from returning within the block."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def _answer(self, value: int) -> dict[str, Any]:
        sure = value < self._sure_below
        return {"label": self.label, "probabilities": [0.9, 0.1] if sure else [0.55, 0.45]}


def small(**options: Any) -> Estimator:
    """Return a small model: it is sure of dark frames only."""
    return Estimator("small", sure_below=100, **options)


def big(**options: Any) -> Estimator:
    """Return a big model: it is sure of everything."""
    return Estimator("big", **options)


class FromFile:
    """A user's estimator that answers with the text of its model file; "bad" cannot be loaded, "flaky" always fails."""

    def load(self, model_url: str) -> None:
        self.label = Path(model_url).read_text()
        if self.label == "bad":
            raise RuntimeError("this is no model")

    def predict(self, data: Any) -> dict[str, Any]:
        if self.label == "flaky":
            raise RuntimeError("it fails at everything")
        sure = int(np.asarray(data).flat[0]) < 100
        return {"label": self.label, "probabilities": [0.9, 0.1] if sure else [0.55, 0.45]}


def write_onnx(path: Path) -> Path:
    """Write a classifier of 4 x 4 grey frames: the brighter they are, the less sure it is of its first label."""
    weights = {"w": np.array([[-0.045, 0.045]] * 16, np.float32), "b": np.array([1, 0], np.float32)}
    gemm: Node = ("Gemm", ["x", "w", "b"], ["y"], {})
    return write_graph(path, [gemm], {"x": (FLOAT, ["N", 16])}, {"y": (FLOAT, ["N", 2])}, weights)


def onnx_spec(*labels: str) -> dict[str, Any]:
    """Return the spec of a Model that reads the file of ``write_onnx``."""
    steps = [{"op": "scale", "factor": 1 / 240}, {"op": "layout", "order": "flat"}, {"op": "cast", "dtype": "float32"}]
    return {"format": "onnx", "labels": labels, "preprocess": steps, "postprocess": {"output": "y"}}


def model_file(folder: Path, onnx_file: Path, label: str) -> dict[str, str]:
    """Return what a worker is told whose model is the ONNX file, under a label of its own."""
    file = folder / f"{label}.json"
    write_desired(file, onnx_file, f"v-{label}", spec=onnx_spec(label, "other"))
    return {"MODEL_FILE": str(file), "MODEL_SPEC": ""}


def write_desired(
    file: Path,
    model: Path,
    version: str,
    *,
    spec: dict[str, Any],
    digest: str = "",
    percent: int = 100,
    successor: bool = False,
) -> None:
    """Write which model a worker shall answer with, as the local controller does; and whether it starts again."""
    wanted = {
        "name": "m", "path": str(model), "version": version, "digest": digest, "spec": spec, "canaryPercent": percent,
        "tried": True,
    }  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps({"models": [wanted], "successor": successor}))
    new.replace(file)
