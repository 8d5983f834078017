"""The model formats that halimede reads itself: their files, and what must be installed for them.

A format has the same name in a Model's ``format``, in an InferenceModel's ``frameworkType`` and as an extra. A user's
own estimator may read any format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A format of model files.

    Attributes:
        name: its name in resources, in lower case.
        title: its name in messages.
        file: the pattern of the file that a folder of this format has.
        preferred: the name that selects one of several such files.
        folder: whether the model is the folder of that file, and not the file alone.
        package: the Python package that runs it; empty: one that is always installed where models run.
        platform: its name in the Open Inference Protocol.

    """

    name: str
    title: str
    file: str
    preferred: str
    folder: bool = False
    package: str = ""
    platform: str = ""

    @property
    def install(self) -> str:
        """The command that installs its package."""
        return f"pip install 'halimede[{self.name}]'"


#: the formats
ONNX = ModelFormat("onnx", "ONNX", "*.onnx", "model.onnx", platform="onnx_onnxv1")
TFLITE = ModelFormat(
    "tflite", "TensorFlow Lite", "*.tflite", "model.tflite", package="ai_edge_litert", platform="tensorflow_lite"
)
SAVED_MODEL = ModelFormat(
    "tensorflow",
    "TensorFlow SavedModel",
    "saved_model.pb",
    "saved_model.pb",
    folder=True,
    package="tensorflow",
    platform="tensorflow_savedmodel",
)
#: all formats by name
FORMATS = {model_format.name: model_format for model_format in (ONNX, TFLITE, SAVED_MODEL)}
#: all names, for messages
FORMAT_NAMES = ", ".join(FORMATS)


def format_of(name: str) -> ModelFormat | None:
    """Return a format by its name in any case; None for a format that only a user's estimator reads."""
    return FORMATS.get(name.lower())
