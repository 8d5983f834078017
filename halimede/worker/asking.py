"""Whom an edge worker asks about frames, and who keeps them: all that it knows of the cloud, of peers and stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from halimede.messages import Frame, Prediction, Reply, Result
from halimede.tracing import Record


class Asks(Protocol):
    """Gets somebody else's answer to a frame (``OffloadClient``)."""

    async def ask(self, frame: Frame, deadline_s: float, trace: Record | None = None) -> Reply:
        """Return the answer, with its prediction. Raises OffloadError with a reason."""

    def abandon(self) -> None:
        """Let every sample run out of time, now and from now on."""


class Share(Asks, Protocol):
    """Hands frames to peers with room."""

    def elsewhere(self) -> bool:
        """Whether a peer shall look at the next frame. Costs next to nothing: it is asked for each one."""


class Keeps(Protocol):
    """Keeps hard samples (``Keeper``)."""

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Take a sample that was answered. Never waits."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who has the last word: its name in results, and whether what is asked counts as a hard example."""

    by: Literal["cloud", "joint"] = "cloud"
    hard: bool = True
