"""What an edge worker notes of the calls of its model: how it and mining fared, how long they took."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.frames.calls import calls
from halimede.frames.pace import Pace
from halimede.frames.seldom import Seldom
from halimede.stats.ledger import Count, Ledger
from halimede.tracing import Book, EdgeTimes
from halimede.worker.sample import Judged, Sample


class Learning:
    """Keeps counts, times, traces and the pace of one edge loop up to date."""

    def __init__(self, ledger: Ledger, times: EdgeTimes, book: Book, pace: Pace) -> None:
        self._ledger = ledger
        self._times = times
        self._book = book
        self._pace = pace
        self._seldom = Seldom()

    def learn(self, answered: Sequence[tuple[Sample, Judged]]) -> None:
        """Note what became of samples, and of the model calls that they were in."""
        for sample, said in answered:
            self._note(sample, said)
        for call in calls((sample.trace, said.outcome) for sample, said in answered):
            self._called(call.samples, call.ms)
            self._book.batch(call.began, call.ended, call.records)

    def learn_one(self, sample: Sample, said: Judged) -> None:
        """Do as ``learn``, of a sample that had its model for itself."""
        self._note(sample, said)
        outcome = said.outcome
        if outcome.batch:
            self._called(outcome.batch, outcome.ms)
            self._book.batch(outcome.began, outcome.began + outcome.ms / 1000, (sample.trace,))

    def _note(self, sample: Sample, said: Judged) -> None:
        if said.outcome.prediction is None:
            self._seldom.warning("small model failed", error=said.outcome.error[:256])
        elif said.verdict.error:
            self._ledger.add(Count.MINING_ERRORS)
            self._seldom.warning("mining failed", error=said.verdict.error[:256])
        sample.judged(said, self._times)

    def _called(self, samples: int, ms: float) -> None:
        self._pace.learn(samples, ms)
        self._times.batch.record(samples)
        self._times.model.record(ms)
