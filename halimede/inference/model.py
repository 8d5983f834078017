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

Array: TypeAlias = NDArray[Any]


class ModelError(HalimedeError):
    """A model cannot be loaded or does not fit its declaration. The text has the cause and the remedy."""

    #: the cause in one word, for conditions
    reason = TrialReason.INVALID


class UnsafeModelError(ModelError):
    """A model was refused: reading it could run code, or open files of others."""

    reason = TrialReason.UNSAFE


class SampleError(HalimedeError):
    """One sample cannot be answered. The model continues to serve others."""


class Model(ABC):
    """One loaded model.

    Attributes:
        ours: no user code runs in it, so that a call that is known to be short never blocks on anything.
        decoding: how the pictures that it prepares are decoded; None: whole.

    """

    ours = False
    decoding: Decoding | None = None

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order; empty when none were declared (a label is then the index as text)."""

    @abstractmethod
    def prepare(self, image: Array) -> Array:
        """Turn one decoded frame into the model's input, by the declared pre-processing.

        Takes ``[height, width, channels]`` or ``[height, width]``, or any raw array when no step needs a picture. It
        was decoded as ``decoding`` says, or whole. Returns one sample without batch axis, C-contiguous. Raises
        SampleError when the frame does not fit.
        """

    def prepare_frame(self, frame: Frame, image: Array) -> Array:  # noqa: ARG002  # most look at pixels alone
        """Turn one decoded frame into the model's input, with its metadata: its camera, its capture time."""
        return self.prepare(image)

    @abstractmethod
    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Answer prepared samples of equal dtype and shape: one prediction each, in order.

        Raises SampleError if at least one sample cannot be answered; ``isolate`` finds out which.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the model's resources. It must not be called afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WrappedModel(Model):
    """Wraps another model, ``model``, and delegates all methods that a subclass does not override."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.decoding = model.decoding

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the model."""
        return self.model.labels

    def prepare(self, image: Array) -> Array:
        """Let the model prepare it."""
        return self.model.prepare(image)

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Let the model prepare it."""
        return self.model.prepare_frame(frame, image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Let the model answer."""
        return self.model.predict(batch)

    def close(self) -> None:
        """Close the model."""
        self.model.close()
