"""The parts of an application: stages, which process one frame at a time, and a joint, which combines findings.

Both are plain classes without topics and clocks, so that they can be run in a test or a notebook. They may block: the
worker calls them in their own thread, one call at a time.
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
        image: ``[height, width, 3]`` or ``[height, width]``, uint8; any array of raw frames.
        camera: the frame's camera.
        id: of the frame, 16 bytes.
        sequence: the camera's own number of the frame.
        captured_ns: capture time, nanoseconds since 1970 by the clock of the camera; never 0.
        prediction: the result so far: after the last stage it is the finding.
        crops: pictures of the boxes, in their order, for later stages.
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
    """Parameters of an application, as text from the resource, read by type. Errors name field and value."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, name: str, default: str, *, choices: Sequence[str] = ()) -> str:
        """Return a parameter; raise InvalidFieldError unless it is one of ``choices``, if there are any."""
        value = self._texts.get(name, default)
        if choices and value not in choices:
            raise InvalidFieldError(_field(name), value, f"use one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a parameter as a number from ``least`` to ``most``; raise InvalidFieldError."""
        text = self._texts.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InvalidFieldError(_field(name), text, f"write a number from {least:g} to {most:g}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a parameter that is true or false; raise InvalidFieldError."""
        text = self._texts.get(name, "true" if default else "false").lower()
        if text not in {"true", "false"}:
            raise InvalidFieldError(_field(name), text, "write true or false")
        return text == "true"


def _field(name: str) -> str:
    return f"spec.application.parameters.{name}"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a stage may use. ``models``: ``model`` and, if the worker has one, ``detector``."""

    models: Mapping[str, Model]
    parameters: Parameters
    worker: str = ""
    node: str = ""


class Stage(ABC):
    """One step in the processing of frames. Made once from ``Tools``, whose errors are the user's mistakes."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @abstractmethod
    def run(self, items: Sequence[Item]) -> None:
        """Process items of equal size and add the results to them.

        Raises SampleError if at least one of them cannot be answered: the worker then finds which, and answers the
        others.
        """

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Free the stage's resources; its tools belong to the worker."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one worker for one frame, as the joint receives it.

    ``key`` identifies it in an Outcome. Another worker than before may take over the ``camera``.
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

    A finding whose answer is None keeps the prediction of its worker.
    """

    answers: Mapping[bytes, Prediction | None] = field(default_factory=dict)
    tracks: Sequence[Track] = ()
    fused: Sequence[Fused] = ()


@dataclass(frozen=True, slots=True)
class JointTools:
    """What a joint may use. ``state`` is its own folder, which persists; ``members``: their names.

    ``models`` has the cloud worker's model if there is one. ``cameras``: those of the service's workers.
    """

    parameters: Parameters
    state: Path
    models: Mapping[str, Model] = field(default_factory=dict)
    members: Sequence[str] = ()
    cameras: Sequence[str] = ()


class Joint(ABC):
    """Combines findings of several workers. ``now`` is monotonic seconds, never wall clock.

    One of the workers decides at a time; the others ``follow`` its decisions, so that any of them can take over.
    """

    def __init__(self, tools: JointTools) -> None:
        self.tools = tools

    def open(self) -> None:  # noqa: B027  # most have nothing to do here
        """Load the stored state; called once before anything else, in the joint's thread."""

    @abstractmethod
    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Accept new findings, and answer those that can be answered. Each finding is answered once, here or later."""

    def due(self, now: float) -> Outcome:  # noqa: ARG002
        """Answer findings that have waited long enough."""
        return Outcome()

    def next_due(self) -> float | None:
        """Return when to call ``due`` next; None: not before the next finding."""
        return None

    def follow(self, tracks: Sequence[Track]) -> None:  # noqa: B027  # most have nothing to do here
        """Apply decisions of another worker."""

    def ask(self, query: IdentityQuery) -> IdentityAnswer | None:  # noqa: ARG002
        """Answer an operator's query; None: this application has no identities."""
        return None

    def snapshot(self) -> Iterator[Track]:
        """Yield the state that a new worker needs, as tracks to follow."""
        return iter(())

    def metrics(self) -> Mapping[str, float]:
        """Return metrics by name."""
        return {}

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Store the state; called in the joint's thread."""
