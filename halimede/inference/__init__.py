"""Models behind one interface: files of some formats and users' own estimators, with their pre- and post-processing.

The only package that imports model runtimes (onnxruntime, ai_edge_litert, tensorflow; ``runtimes``) and OpenCV.
It uses no bus and no files except the model's own, decodes no frames, and loads no custom operator libraries and no
pickles.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from halimede.api.model import ModelSpec
from halimede.api.processing import Fit, Letterbox, Resize, scripts_of
from halimede.errors import InvalidFieldError
from halimede.inference.batching import group, isolate, signature
from halimede.inference.ensemble import EnsembleModel
from halimede.inference.estimator import EstimatorModel, load_estimator, load_instance
from halimede.inference.file_model import open_file
from halimede.inference.model import Array, Model, ModelError, SampleError, UnsafeModelError
from halimede.inference.opencv import opencv
from halimede.inference.postprocess import pack, unit, unpack

__all__ = [
    "Array",
    "EnsembleModel",
    "Model",
    "ModelError",
    "SampleError",
    "UnsafeModelError",
    "group",
    "isolate",
    "load_estimator",
    "open_committee",
    "open_model",
    "pack",
    "signature",
    "unit",
    "unpack",
]


def open_committee(model: Model, further: Sequence[tuple[Path | str, ModelSpec]], *, threads: int = 1) -> Model:
    """Return one model that answers by the majority of ``model`` and of one or two further ones.

    ``further``: path and spec of each further model, which is opened here; empty: ``model`` itself is returned.
    ``threads``: of one call of a model; 0: one for each core. Raises ModelError, InvalidFieldError, and leaves
    ``model`` open then. The caller closes the returned model, which closes all of them.
    """
    if not further:
        return model
    with ExitStack() as stack:
        members = [stack.enter_context(open_model(path, spec, threads=threads)) for path, spec in further]
        ensemble = EnsembleModel([model, *members])
        stack.pop_all()
        return ensemble


def open_model(path: Path | str, spec: ModelSpec, estimator: object | None = None, *, threads: int = 1) -> Model:
    """Load the prepared model at ``path`` and check that it fits its spec.

    With ``estimator`` (an instance with a method ``predict``, or its class, which is called without arguments) the
    user's own code reads the file, whatever its format. Without it the file must have a format that halimede reads
    (``halimede.api.model_formats``), and runs on ``threads`` threads of the CPU (0: one for each core).
    Raises ModelError or, for a spec that contradicts itself, InvalidFieldError.
    """
    for step in spec.preprocess:
        if isinstance(step, Resize | Fit | Letterbox) and step.method != "antialias":
            opencv(step.method)
    if estimator is not None:
        for field, script in scripts_of(spec.preprocess, spec.postprocess):
            raise InvalidFieldError(field, script.file, "remove it: the estimator does this itself")
        return EstimatorModel(load_instance(estimator, path), spec)
    return open_file(path, spec, threads=threads)
