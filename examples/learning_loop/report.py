"""The figures of the demo, from what its cameras sent and received, and the promises that they have to keep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.learning_loop.stream import Mark, SentFrame
from halimede.calibration.measurement import bootstrap

#: least part of the lost accuracy, and of the additional uploads, that the loop must win back
WON_BACK = 0.5
#: most that p99 of the edge's answers may grow while the node trains, against the same stream before the training: the
#: lower end of the ratio's interval must not be above it
MOST_SLOWER = 1.5
TRAINING = frozenset({"Training", "Judging"})
ROLLED_OUT, WITHDRAWN = "RolledOut", "Withdrawn"

Times = NDArray[np.float64]


@dataclass(frozen=True)
class FinishedRun:
    """A run that is over. ``drift_s``, ``canary_s``, ``after_s``, ``worse_s``: when its parts began.

    They are seconds since the first frame: of the drift, the canary, the stream after the roll-out, and the round with
    the bad candidate. ``warm_s``: the first frames do not count.
    """

    frames: Sequence[SentFrame]
    marks: Sequence[Mark]
    loop: Mapping[str, Any]
    warm_s: float
    drift_s: float
    canary_s: float
    after_s: float
    worse_s: float

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """The rounds that are over."""
        return list(self.loop.get("history", []))

    @property
    def end_s(self) -> float:
        """When the last frame was sent."""
        return max((frame.at_s for frame in self.frames), default=0.0)

    def between(self, begin: float, end: float) -> list[SentFrame]:
        """Return the answered frames that were sent in a part of the run."""
        return [frame for frame in self.frames if begin <= frame.at_s < end and frame.by]

    @property
    def drifted(self) -> list[SentFrame]:
        """The answered frames that were sent after the drift and before the first training."""
        begin = next((mark.at_s for mark in self.marks if mark.state in TRAINING), self.canary_s)
        return self.between(self.drift_s, begin)

    @property
    def trained(self) -> list[SentFrame]:
        """The answered frames that were sent while the node trained."""
        found: list[SentFrame] = []
        states = [mark for mark in self.marks if mark.state]
        for mark, then in zip(states, [*states[1:], None], strict=True):
            if mark.state in TRAINING:
                found += self.between(mark.at_s, then.at_s if then else self.end_s)
        return found


def accuracy(frames: Sequence[SentFrame]) -> float:
    """Return the share of right answers."""
    return sum(frame.label == frame.truth for frame in frames) / max(len(frames), 1)


def uploads(frames: Sequence[SentFrame]) -> float:
    """Return the share of frames that mining selected for the cloud."""
    return sum(frame.hard for frame in frames) / max(len(frames), 1)


def p99(taken: Times) -> float:
    """Return p99 of some times; 0: there is none."""
    return float(np.quantile(taken, 0.99, method="inverted_cdf")) if len(taken) else 0.0


def taken_ms(frames: Iterable[SentFrame]) -> Times:
    """Return the time from each frame to its answer by the edge, in ms."""
    return np.array([1000 * (frame.answered_s - frame.at_s) for frame in frames if frame.by == "edge"])


def p99_ratio(before: Times, training: Times) -> tuple[float, float, float]:
    """Return p99 while training in multiples of p99 before, and its 95 % interval (Efron 1979); 0: nothing to compare.

    A short training has some hundred frames: p99 is the time of the fourth or fifth slowest one, which varies a lot.
    """
    if not len(before) or not len(training):
        return 0.0, 0.0, 0.0
    taken = np.concatenate([before, training])
    trains = np.arange(len(taken)) >= len(before)

    def ratio(drawn: NDArray[np.int64]) -> float:
        part, of = taken[drawn], trains[drawn]
        return p99(part[of]) / p99(part[~of]) if of.any() and not of.all() else 1.0

    return (p99(training) / p99(before), *bootstrap(ratio, np.arange(len(taken))))


def figures(run: FinishedRun) -> dict[str, Any]:
    """Return report.json."""
    parts = {
        "before_drift": run.between(run.warm_s, run.drift_s),
        "drifted": run.between(run.drift_s, run.canary_s),
        "after": run.between(run.after_s, run.worse_s),
    }
    before, drifted, trained = (taken_ms(each) for each in (parts["before_drift"], run.drifted, run.trained))
    ratio, *interval = p99_ratio(drifted, trained)
    outcomes = [record.get("outcome") for record in run.history]
    return {
        **{f"accuracy_{name}": round(accuracy(frames), 4) for name, frames in parts.items()},
        **{f"upload_ratio_{name.removesuffix('_drift')}": round(uploads(frames), 4) for name, frames in parts.items()},
        "candidates": sum(bool(record.get("version")) for record in run.history),
        "rolled_out": outcomes.count(ROLLED_OUT),
        "refused": outcomes.count(WITHDRAWN),
        "lost": sum(not frame.by for frame in run.frames),
        "edge_p99_ms_before": round(p99(before), 3),
        "edge_p99_ms_drifted": round(p99(drifted), 3),
        "edge_p99_ms_training": round(p99(trained), 3),
        "edge_p99_ratio": round(ratio, 3),
        "edge_p99_ratio_interval": [round(end, 3) for end in interval],
        "frames": len(run.frames),
        "frames_drifted_before_training": len(run.drifted),
        "frames_while_training": len(run.trained),
        "seconds_from_drift_to_rollout": round(run.after_s - run.drift_s, 1),
        "refused_reasons": [str(record.get("reason")) for record in run.history if record.get("outcome") == WITHDRAWN],
    }


def missed(found: Mapping[str, Any]) -> list[str]:
    """Return the promises that a run broke, in one line each."""
    before, low, after = (found[f"accuracy_{name}"] for name in ("before_drift", "drifted", "after"))
    calm, high, then = (found[f"upload_ratio_{name}"] for name in ("before", "drifted", "after"))
    slower, least, most = found["edge_p99_ratio"], *found["edge_p99_ratio_interval"]
    checks = {
        f"{found['lost']} frames have no answer": not found["lost"],
        "no candidate was rolled out": found["rolled_out"] > 0,
        "the bad candidate was not refused": found["refused"] > 0,
        f"the drift costs no accuracy: {before} before, {low} after it": low < before,
        f"accuracy {after} is not half of the way from {low} to {before}": after - low >= WON_BACK * (before - low),
        f"uploads {then} are not half of the way from {high} to {calm}": high - then >= WON_BACK * (high - calm),
        "the edge answered nothing before or while the node trained": slower > 0,
        f"p99 at the edge is {slower:.2f} times as long while training ({least:.2f} to {most:.2f}): surely more than "
        f"{MOST_SLOWER}": least <= MOST_SLOWER,
    }
    return [text for text, met in checks.items() if not met]


def table(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each figure, for people."""
    return [
        ("accuracy before the drift, drifted, after the roll-out", _three(found, "accuracy", "before_drift")),
        ("uploads before the drift, drifted, after the roll-out", _three(found, "upload_ratio", "before")),
        ("candidates", f"{found['candidates']}"),
        ("rolled out", f"{found['rolled_out']}"),
        ("refused", f"{found['refused']} ({', '.join(found['refused_reasons']) or 'none'})"),
        ("frames, lost", f"{found['frames']:,}, {found['lost']}"),
        ("p99 of the edge's answers before the drift", f"{found['edge_p99_ms_before']:.1f} ms"),
        ("the same after the drift, before the node trains", f"{found['edge_p99_ms_drifted']:.1f} ms"),
        ("the same while the node trains", f"{found['edge_p99_ms_training']:.1f} ms"),
        ("ratio of the last two, with its interval", _ratio(found)),
        ("frames sent meanwhile", f"{found['frames_while_training']:,}"),
        ("seconds from the drift to the roll-out", f"{found['seconds_from_drift_to_rollout']:.0f}"),
    ]


def _ratio(found: Mapping[str, Any]) -> str:
    low, high = found["edge_p99_ratio_interval"]
    return f"{found['edge_p99_ratio']:.2f} ({low:.2f} to {high:.2f})"


def _three(found: Mapping[str, Any], name: str, first: str) -> str:
    return ", ".join(f"{found[f'{name}_{part}']:.3f}" for part in (first, "drifted", "after"))
