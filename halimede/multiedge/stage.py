"""Base classes for the parts of an application: stages, which process frames, and a joint, which combines findings.

A finding is what the stages of one worker make of one frame. Both kinds of parts are plain classes without topics and
clocks, so that they can be run in a test or a notebook. They may block: the worker calls them in a thread, one call at
a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halimede.errors import InvalidFieldError
from halimede.inference import Array, Model
from halimede.messages import Fused, IdentityAnswer, IdentityQuery, Prediction, Track


@dataclass(slots=True)
class Item:
    """One frame in the stages, and their results so far.

    Attributes:
        image: the picture, ``(height, width, 3)`` or ``(height, width)`` uint8; for a raw frame an array of any shape.
        camera: the frame's camera; empty if unknown.
        id: the frame's id, 16 bytes; empty if unknown.
        sequence: the camera's own number of the frame; 0 if unknown.
        captured_ns: time of capture by the camera's clock, in nanoseconds since 1970; 0 if unknown.
        prediction: the result so far; after the last stage it is the finding.
        crops: the pictures in the prediction's boxes, in the order of the boxes; empty before the stage ``Crop``.
        values: any data that stages of one application share.

    """

    image: Array
    camera: str = ""
    id: bytes = b""
    sequence: int = 0
    captured_ns: int = 0
    prediction: Prediction = field(default_factory=Prediction)
    crops: list[Array] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


class Parameters(Mapping[str, str]):
    """The parameters of an application: texts by name, from the resource, with methods that read them by type.

    The methods raise InvalidFieldError, which names the parameter and its value, for a text that is not valid.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, name: str, default: str, *, choices: Sequence[str] = ()) -> str:
        """Return a parameter, or ``default`` if it is missing. It must be one of ``choices``, if there are any."""
        value = self._texts.get(name, default)
        if choices and value not in choices:
            raise InvalidFieldError(_field(name), value, f"use one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a parameter, or ``default`` if it is missing. It must be a number from ``least`` to ``most``."""
        text = self._texts.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InvalidFieldError(_field(name), text, f"write a number from {least:g} to {most:g}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return whether a parameter is ``true``, or ``default`` if it is missing. It must be true or false."""
        text = self._texts.get(name, "true" if default else "false").lower()
        if text not in {"true", "false"}:
            raise InvalidFieldError(_field(name), text, "write true or false")
        return text == "true"


def _field(name: str) -> str:
    """Return the path of a parameter in the resource."""
    return f"spec.application.parameters.{name}"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a stage may use: the names of its worker and node, the application's parameters, and models.

    ``models``: ``model`` is the worker's own model; ``detector`` is there if the worker has one.
    """

    models: Mapping[str, Model]
    parameters: Parameters
    worker: str = ""
    node: str = ""


class Stage(ABC):
    """One step in the processing of frames. A worker makes it once.

    The constructor may raise InvalidFieldError for parameters or models that the stage cannot use.
    """

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @abstractmethod
    def run(self, items: Sequence[Item]) -> None:
        """Process frames of equal size, and add the results to the items.

        Raises SampleError if at least one frame cannot be answered. The worker then runs the frames one by one, and
        answers each frame that does not fail.
        """

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Free the stage's resources, but not its tools: the worker closes the models."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the stages of one worker have made of one frame, as the joint receives it.

    Attributes:
        key: identifies the finding in an ``Outcome``.
        camera: the frame's camera; empty if unknown. Later frames of the camera may come from another worker.
        worker: the worker that sent the finding.
        node: the node of that worker.
        sequence: the camera's own number of the frame; 0 if unknown.
        captured_ns: time of capture by the camera's clock, in nanoseconds since 1970; 0 if unknown.
        prediction: the result of the stages.

    """

    key: bytes
    camera: str
    worker: str
    node: str
    sequence: int
    captured_ns: int
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Outcome:
    """A joint's output: answers to findings, and messages for all consumers.

    Attributes:
        answers: the prediction for each answered finding, by its key; None: the finding's own prediction.
        tracks: identities that were seen (re-identification); the joints of other workers follow them.
        fused: common answers of several cameras (fusion).

    """

    answers: Mapping[bytes, Prediction | None] = field(default_factory=dict)
    tracks: Sequence[Track] = ()
    fused: Sequence[Fused] = ()


@dataclass(frozen=True, slots=True)
class JointTools:
    """What a joint may use.

    Attributes:
        parameters: the application's parameters.
        state: the joint's own folder, which survives restarts.
        models: ``model`` is the cloud worker's model; empty on an edge worker, or if the cloud worker has no model.
        members: the names of all edge workers.
        cameras: the cameras of all edge workers; empty if unknown.

    """

    parameters: Parameters
    state: Path
    models: Mapping[str, Model] = field(default_factory=dict)
    members: Sequence[str] = ()
    cameras: Sequence[str] = ()


class Joint(ABC):
    """Combines findings of several workers. ``now`` is a time in seconds of a monotonic clock, never the wall clock.

    Several workers may have a joint. One of them decides at a time, and its joint gets the findings. The others
    ``follow`` its decisions, so that any of them can take over. An exception in ``take`` or ``due`` is logged, and the
    workers keep their own predictions. After one in ``ask``, the operator gets no answer.
    """

    def __init__(self, tools: JointTools) -> None:
        self.tools = tools

    def open(self) -> None:  # noqa: B027  # most have nothing to do here
        """Load the stored state; called once before all other methods. An exception ends the worker."""

    @abstractmethod
    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Accept new findings, and answer those that can be answered now; ``due`` answers the others later."""

    def due(self, now: float) -> Outcome:  # noqa: ARG002
        """Answer the findings that have waited long enough.

        Called after each ``take`` and ``follow``, and at the time of ``next_due``, on all workers with a joint.
        """
        return Outcome()

    def next_due(self) -> float | None:
        """Return the time (as ``now``) at which to call ``due`` next; None: not before the next finding."""
        return None

    def follow(self, tracks: Sequence[Track]) -> None:  # noqa: B027  # most have nothing to do here
        """Apply decisions of another worker, or the state that it sent: a track may come again."""

    def ask(self, query: IdentityQuery) -> IdentityAnswer | None:  # noqa: ARG002
        """Answer an operator's query about an identity; None: this application has no identities."""
        return None

    def snapshot(self) -> Iterator[Track]:
        """Yield the state that a new worker needs, as tracks for ``follow``."""
        return iter(())

    def metrics(self) -> Mapping[str, float]:
        """Return the sizes of the state to export as metrics, by name.

        Called from the event loop, perhaps while another method runs in the thread.
        """
        return {}

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Store the state; called once, after all other methods."""
