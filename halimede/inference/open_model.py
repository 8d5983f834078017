"""One way to open a model, whatever is behind it."""

from __future__ import annotations

from pathlib import Path

from halimede.api.model import ModelSpec
from halimede.inference.estimator import open_estimator
from halimede.inference.model import Model
from halimede.inference.onnx import open_onnx


def open_model(path: Path | str, spec: ModelSpec, estimator: object | None = None, *, threads: int = 1) -> Model:
    """Load the prepared model at ``path`` and check that it fits its spec.

    With ``estimator`` (a class or an instance, see ``load_estimator``) the user's own code reads the file, whatever
    its format. Without it the file must be ONNX and runs on ``threads`` threads of the CPU (0: one a core).
    Raises ModelError or, for a spec that contradicts itself, InvalidFieldError.
    """
    if estimator is not None:
        return open_estimator(estimator, path, spec)
    return open_onnx(path, spec, threads=threads)
