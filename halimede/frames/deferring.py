"""What a server needs to know of those whom it may ask itself: the next tier of a service that has several.

The server has answered a sample with its own model by then. Asking on happens beside its batches, in the time that the
sample has left; where nobody answers in it, the own answer goes back, and says why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from halimede.messages import Frame, Prediction, Reply
from halimede.tracing import Record


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a sample that the own model has answered.

    ``ask`` gets the next tier's answer, its ``prediction`` set, or raises OffloadError. Where there is none, or it
    returns None, the own answer stands, of a hard sample for a ``reason``.
    """

    ask: Callable[[], Awaitable[Reply | None]] | None = None
    reason: str = ""


class Defers(Protocol):
    """Decides what the next tier is asked."""

    def choose(self, frame: Frame, prediction: Prediction | None, until: float, trace: Record) -> Choice:
        """Decide on a sample; called once for each, in order. ``prediction`` None: the own model failed on it.

        ``until`` (the loop's time) is when the next tier's answer has to be here.
        """

    def abandon(self) -> None:
        """Wait for nobody any more: a stopping worker wants its own answers out."""


def passed_on(own: Reply, beyond: Reply) -> Reply:
    """Make the answer of the next tier the reply to those who asked here. Changes and returns ``own``."""
    own.prediction, own.error, own.message = beyond.prediction, "", ""
    own.model, own.tier, own.reason = beyond.model, beyond.tier, beyond.reason
    own.by = beyond.by or beyond.worker
    return own
