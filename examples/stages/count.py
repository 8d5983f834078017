"""How many are there? Two cameras (or sixty) count what they see, and one total is told each second.

    python -m halimede.multiedge.show --entry examples.stages.count:application
    halimede apply -f examples/digits/1-models.yaml -f examples/stages/count.yaml
    halimede results -f count
    mosquitto_sub -t default/sedna/multiedge/count/fused

What it takes to make an application of one's own is all here: a stage that adds to each frame what it wants to say, a
joint that makes one thing of what all workers say, and a function that puts them behind stages that are there already.
Parameters: ``find`` (motion, or model: the worker's detector), ``waitMs`` (300): how long after its end a second waits
for late frames, and those of the stages (docs/stages.md).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from halimede.messages import Fused, FusedFrom
from halimede.multiedge import Application, Finding, Item, Joint, JointTools, Outcome, Parameters, Stage
from halimede.multiedge.stages import Classify, Crop, Detect, Motion

SECOND_NS = 1_000_000_000
#: seconds that are counted at a time, and those of the past that are remembered; cameras that are counted
OPEN, TOLD, CAMERAS = 16, 256, 64


class Count(Stage):
    """Say how many of each kind are in the picture: ``value.count``, by label."""

    def run(self, items: Sequence[Item]) -> None:
        """Count the boxes of each item."""
        for item in items:
            item.prediction.value = {"count": dict(Counter(str(box.label) for box in item.prediction.boxes or []))}


@dataclass
class Second:
    """What the cameras saw within one second: of each the most that it saw at once, and its worker."""

    opened: float
    most: dict[str, Counter[str]] = field(default_factory=dict)
    workers: dict[str, str] = field(default_factory=dict)


class Total(Joint):
    """Answer each finding with the total over all cameras so far (``value.total``), and tell one of each second."""

    def __init__(self, tools: JointTools) -> None:
        super().__init__(tools)
        self._wait = tools.parameters.number("waitMs", 300, least=0, most=60_000) / 1000
        self._open: dict[int, Second] = {}
        self._told: deque[int] = deque(maxlen=TOLD)

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Answer at once: a total that grows within its second is better than a late one."""
        answers = {}
        for finding in findings:
            total = self._counted(finding, now)
            value = {**(finding.prediction.value or {}), "total": dict(total)}
            answers[finding.key] = msgspec.structs.replace(finding.prediction, value=value)
        return Outcome(answers=answers, fused=self._tell(now))

    def due(self, now: float) -> Outcome:
        """Tell the seconds that are over."""
        return Outcome(fused=self._tell(now))

    def next_due(self) -> float | None:
        """Return when the next second is over, late frames included."""
        return min((second.opened + 1 + self._wait for second in self._open.values()), default=None)

    def _counted(self, finding: Finding, now: float) -> Counter[str]:
        """Add a finding to its second, and return the total of that. What comes too late stands for itself."""
        here = Counter((finding.prediction.value or {}).get("count", {}))
        number = finding.captured_ns // SECOND_NS
        if number in self._told:
            return here
        second = self._open.setdefault(number, Second(now))
        if finding.camera in second.most or len(second.most) < CAMERAS:
            before = second.most.get(finding.camera, Counter())
            second.most[finding.camera] = max(before, here, key=Counter.total)
            second.workers[finding.camera] = finding.worker
        return sum(second.most.values(), Counter())

    def _tell(self, now: float) -> list[Fused]:
        """Close the seconds that are over, and the oldest where there are too many (clocks that differ)."""
        over = [n for n, second in self._open.items() if now >= second.opened + 1 + self._wait]
        over += sorted(set(self._open) - set(over))[: max(0, len(self._open) - len(over) - OPEN)]
        self._told.extend(over)
        return [self._fused(number, self._open.pop(number)) for number in sorted(over)]

    def _fused(self, number: int, second: Second) -> Fused:
        total: Counter[str] = sum(second.most.values(), Counter())
        sources = [
            FusedFrom(camera=camera, worker=second.workers[camera], label=str(count.total()))
            for camera, count in sorted(second.most.items())
        ]
        missing = sorted(set(self.tools.cameras) - set(second.most))[:CAMERAS]
        return Fused(
            instant=float(number),
            rule="count",
            label=str(total.total()),
            sources=sources,
            missing=missing,
            value=dict(total),
        )


def application(parameters: Parameters) -> Application:
    """Put it together: source -> find -> crop -> classify -> count => total -> sink."""
    find = {"motion": Motion, "model": Detect}[parameters.text("find", "motion", choices=("motion", "model"))]
    return Application(stages=[find, Crop, partial(Classify, crops=True), Count], joint=Total)
