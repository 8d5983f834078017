"""The interface of all models. Callers do not depend on the runtime behind it.

A model answers samples. This package hides how it was trained, which library runs it and how its raw output is read;
the result is a ``Prediction``. Calls block: callers on an event loop run them in a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from numpy.typing import NDArray

from halimede.errors import HalimedeError
from halimede.messages import Frame, Prediction
from halimede.messages.file_facts import TrialReason

if TYPE_CHECKING:
    from halimede.inference.decoding import Decoding

#: a NumPy array; docstrings give its shape and element type
Array: TypeAlias = NDArray[Any]


class ModelError(HalimedeError):
    """A model cannot be loaded or does not fit its spec. The text has the cause and the remedy."""

    #: the cause in one word, for the conditions of a status
    reason = TrialReason.INVALID


class UnsafeModelError(ModelError):
    """A model was refused: reading it could run code, or open files of others."""

    reason = TrialReason.UNSAFE


class SampleError(HalimedeError):
    """One sample cannot be answered. The model continues to serve others."""


class Model(ABC):
    """One loaded model: callers ``prepare`` each frame, ``predict`` batches of prepared samples, and ``close`` it.

    Attributes:
        ours: True: no user code runs in the model, so a call that was measured as short does not block.
        decoding: decides at which smaller scale JPEG frames are decoded for ``prepare``; None: they are decoded whole.

    """

    ours = False
    decoding: Decoding | None = None

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order; empty when none were declared: labels are then indices, a text or a number."""

    @abstractmethod
    def prepare(self, image: Array) -> Array:
        """Turn one decoded frame into the model's input, by the declared pre-processing.

        ``image``: ``[height, width, channels]`` or ``[height, width]``, decoded whole or at the scale of ``decoding``;
        or any raw array of numbers if no step needs a picture. Returns one sample without batch axis, C-contiguous.
        Raises SampleError if the frame does not fit.
        """

    def prepare_frame(self, frame: Frame, image: Array) -> Array:  # noqa: ARG002  # most look at pixels alone
        """Do the same as ``prepare``; a model may also use the metadata of ``frame``: its camera, its capture time."""
        return self.prepare(image)

    @abstractmethod
    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Return one prediction for each prepared sample, in order. All samples have one dtype and one shape.

        Raises SampleError if any sample cannot be answered (``batching.isolate`` finds out which). Blocks.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the model's memory. The model must not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WrappedModel(Model):
    """A ``Model`` that passes all calls on to another one, ``model``. Subclasses override some methods.

    ``decoding`` is that of ``model``; ``ours`` stays False.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.decoding = model.decoding

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the wrapped model."""
        return self.model.labels

    def prepare(self, image: Array) -> Array:
        """Return the sample that the wrapped model prepares."""
        return self.model.prepare(image)

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Return the sample that the wrapped model prepares."""
        return self.model.prepare_frame(frame, image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Return the wrapped model's predictions."""
        return self.model.predict(batch)

    def close(self) -> None:
        """Close the wrapped model."""
        self.model.close()
