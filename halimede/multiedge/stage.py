"""What an application is made of: stages, which look at one frame at a time, and a joint, which sees what all found.

Both are plain classes that know neither topics nor clocks, so that they can be tried in a test or a notebook. They
block: the worker calls them in a thread of their own, one call at a time.
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
    """One frame on its way through the stages, and what they have found so far.

    Attributes:
        image: ``[height, width, 3]`` or ``[height, width]``, uint8; any array of raw frames.
        camera: which camera it is of.
        id: of the frame, 16 bytes.
        sequence: the camera's own number of it.
        captured_ns: when it was taken, nanoseconds since 1970 by the clock of whoever took it; never 0.
        prediction: what is found: this is what leaves in the end.
        crops: pictures of the boxes, in their order, for the stages after.
        values: whatever stages of one application tell one another.

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
    """Parameters of an application as the resource gives them: text, read by type. Errors name field and value."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def text(self, name: str, default: str, *, choices: Sequence[str] = ()) -> str:
        """Return a parameter; raise InvalidFieldError unless it is one of ``choices``, where there are any."""
        value = self._given.get(name, default)
        if choices and value not in choices:
            raise InvalidFieldError(_field(name), value, f"use one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a parameter as a number from ``least`` to ``most``; raise InvalidFieldError."""
        text = self._given.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InvalidFieldError(_field(name), text, f"write a number from {least:g} to {most:g}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a parameter that is true or false; raise InvalidFieldError."""
        text = self._given.get(name, "true" if default else "false").lower()
        if text not in {"true", "false"}:
            raise InvalidFieldError(_field(name), text, "write true or false")
        return text == "true"


def _field(name: str) -> str:
    return f"spec.application.parameters.{name}"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a stage may use. ``models``: ``model`` and, where the worker has one, ``detector``."""

    models: Mapping[str, Model]
    parameters: Parameters
    worker: str = ""
    node: str = ""


class Stage(ABC):
    """One step of what a worker does with its frames. Made once from ``Tools``; errors in these are the user's."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @abstractmethod
    def run(self, items: Sequence[Item]) -> None:
        """Look at items of equal size and add to them what is found.

        Raises SampleError when at least one of them cannot be answered: it is found out which, the others are.
        """

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Free what the stage holds (its tools are not its own)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one worker found in one frame, as it arrives where findings come together.

    ``key`` tells it apart: an Outcome answers it. ``camera`` may be taken over by another worker than before.
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

    A finding whose answer is None stands as its worker found it.
    """

    answers: Mapping[bytes, Prediction | None] = field(default_factory=dict)
    tracks: Sequence[Track] = ()
    fused: Sequence[Fused] = ()


@dataclass(frozen=True, slots=True)
class JointTools:
    """What a joint may use. ``state`` is a folder of its own that outlives the worker; ``members``: their names.

    ``models`` holds the cloud worker's model where it has one. ``cameras``: those that the service's workers have.
    """

    parameters: Parameters
    state: Path
    models: Mapping[str, Model] = field(default_factory=dict)
    members: Sequence[str] = ()
    cameras: Sequence[str] = ()


class Joint(ABC):
    """Where findings of several workers come together. ``now`` is monotonic seconds, never wall clock.

    One of the workers decides at a time; the others ``follow`` what it says, so that any of them can go on.
    """

    def __init__(self, tools: JointTools) -> None:
        self.tools = tools

    def open(self) -> None:  # noqa: B027  # most have nothing to do here
        """Read what is kept from an earlier life; called once before anything else, in the joint's thread."""

    @abstractmethod
    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Take new findings, and answer what can be answered now. Each finding is answered once, here or later."""

    def due(self, now: float) -> Outcome:  # noqa: ARG002
        """Answer what waits no longer."""
        return Outcome()

    def next_due(self) -> float | None:
        """Return when ``due`` wants to be called, None: not before the next finding."""
        return None

    def follow(self, tracks: Sequence[Track]) -> None:  # noqa: B027  # most have nothing to do here
        """Learn what another worker has decided."""

    def ask(self, query: IdentityQuery) -> IdentityAnswer | None:  # noqa: ARG002
        """Answer a question of an operator's; None: this application knows of no identities."""
        return None

    def snapshot(self) -> Iterator[Track]:
        """Yield all that a worker that has just come needs to know, as tracks to follow."""
        return iter(())

    def metrics(self) -> Mapping[str, float]:
        """Return what shall be seen in metrics, by name."""
        return {}

    def close(self) -> None:  # noqa: B027  # most have nothing to do here
        """Write down what is to be kept; called in the joint's thread."""
