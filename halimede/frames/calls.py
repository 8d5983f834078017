"""Which samples shared a model call: how a worker learns its pace, counts its batches, and links its traces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from halimede.frames.compute import Outcome
from halimede.tracing import Record


@dataclass(slots=True, eq=False)
class Call:
    """One model call: samples in it, its time, when it began (monotonic), and the records of its samples."""

    samples: int
    ms: float
    began: float
    records: list[Record] = field(default_factory=list)

    @property
    def ended(self) -> float:
        """When it ended (monotonic)."""
        return self.began + self.ms / 1000


def calls(answered: Iterable[tuple[Record, Outcome]]) -> list[Call]:
    """Return the model calls that samples were in."""
    found: dict[float, Call] = {}
    for record, outcome in answered:
        if outcome.batch:
            call = found.get(outcome.began)
            if call is None:
                call = found[outcome.began] = Call(outcome.batch, outcome.ms, outcome.began)
            call.records.append(record)
    return list(found.values())
