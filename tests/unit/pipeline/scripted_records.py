"""How a scripted world is set up, and records of all that its worker is given and answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from halimede.messages import Result
from halimede.pipeline.model_slot import LoadedModel
from halimede.pipeline.sample import Sample


@dataclass(frozen=True)
class Setup:
    """A configuration of the pipeline.

    ``kind``: edge, edge-peers, member, cloud; ``next_tier``: there is one; ``short``: its models may run on the loop.
    """

    kind: str
    next_tier: bool = False
    short: bool = False
    lanes: int = 1
    delay_s: float = 0.0
    mines_first: bool = False
    policy: bool = False
    hard: bool = True


@dataclass
class Offer:
    """A frame that a source hands over. ``answered``: how often the source was notified."""

    id: bytes
    acked: bool
    task: asyncio.Task[None] | None = None
    answered: int = 0

    def note(self) -> None:
        """Note that the source was notified."""
        self.answered += 1

    @property
    def taken(self) -> bool:
        """Whether the frame was accepted, or known as one that was."""
        task = self.task
        return task is not None and task.done() and not task.cancelled() and task.exception() is None


@dataclass
class Records:
    """What went in and what came out."""

    submitted: list[Sample] = field(default_factory=list)
    answers: dict[Sample, list[str]] = field(default_factory=dict)
    offers: list[Offer] = field(default_factory=list)
    #: for each call of a publisher: how often it reported the end of a message
    reports: list[list[int]] = field(default_factory=list)
    #: replies that were handed to the publisher, and that arrived
    replies: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    delivered: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    results: dict[str, list[Result]] = field(default_factory=dict)
    models: list[LoadedModel] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Room:
    """Advertises nothing."""

    def touch(self) -> None:
        return

    async def run(self) -> None:
        return

    async def withdraw(self) -> None:
        return
