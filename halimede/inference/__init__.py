"""Models behind one face: ONNX files and users' own estimators, with their pre- and post-processing.

The only room that imports onnxruntime. It knows no bus, no frames and no files but the model's own, loads no custom
operator libraries and no pickles.
"""

from halimede.inference.batching import group, isolate, signature
from halimede.inference.embedding import pack, unit, unpack
from halimede.inference.estimator import load_estimator
from halimede.inference.model import Array, Model, ModelError, SampleError, UnsafeModelError
from halimede.inference.open_model import open_model

__all__ = [
    "Array",
    "Model",
    "ModelError",
    "SampleError",
    "UnsafeModelError",
    "group",
    "isolate",
    "load_estimator",
    "open_model",
    "pack",
    "signature",
    "unit",
    "unpack",
]
