"""The outcome of a run: ``build/cluster/report.json``, and a table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = ("sent", "answered", "lost_named", "lost_unnamed", "recovery_s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario's frames.

    ``lost_named``: the publisher was told (nobody was there for the frame, or the broker did not take it), or the
    service's status counts the frame as lost or its result as received by nobody. ``lost_unnamed``: accepted and never
    heard of again, or still on its way to the broker at the end. ``recovery_s``: the longest time without an answer.
    """

    sent: int
    answered: int
    lost_named: int
    lost_unnamed: int
    recovery_s: float

    @classmethod
    def of(cls, load: Mapping[str, Any], lost: int) -> Outcome:
        """Return the outcome of a load (``load.Tally.outcome``); ``lost``: by how much the status' count grew.

        Raises AssertionError if a frame sent is in none of the counts.
        """
        # the count begins again in a service that was made again
        counted = max(0, min(lost, load["unanswered"]))
        named, unnamed = load["unheard"] + load["refused"] + counted, load["unanswered"] - counted + load["open"]
        assert load["sent"] == load["answered"] + named + unnamed, f"frames are missing in these counts: {load}"
        return cls(
            sent=load["sent"],
            answered=load["answered"],
            lost_named=named,
            lost_unnamed=unnamed,
            recovery_s=load["gaps"][0][0] if load["gaps"] else load["seconds"],
        )


@dataclass
class Report:
    """Collects the figures of a run, and writes them after each scenario."""

    path: Path
    first_answer_s: float | None = None
    scenarios: dict[str, Outcome] = field(default_factory=dict)
    images_mb: dict[str, float] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)
    #: other figures, such as failed pods a minute
    figures: dict[str, float] = field(default_factory=dict)

    #: scenarios, or tests without one, and why
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, outcome: Outcome, raw: Mapping[str, Any]) -> None:
        """Add a scenario, and write; all that the load counted goes to a file of its own."""
        self.scenarios[name] = outcome
        self.write()
        details = self.path.parent / "loads" / f"{name.replace(' ', '-')}.json"
        details.parent.mkdir(exist_ok=True)
        details.write_text(json.dumps(raw, indent=2) + "\n")

    def write(self) -> None:
        """Write all that is known."""
        body = {name: value for name, value in asdict(self).items() if name != "path"}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(body, indent=2) + "\n")

    def table(self) -> str:
        """Return the scenarios as a table."""
        width = max([len("scenario"), *map(len, self.scenarios)])
        lines = [f"{'scenario':{width}}" + "".join(f"{name:>14}" for name in COLUMNS)]
        for name, outcome in self.scenarios.items():
            values = asdict(outcome)
            lines.append(f"{name:{width}}" + "".join(f"{values[column]:>14}" for column in COLUMNS))
        others = {"first answer, s": self.first_answer_s, **self.figures}
        lines += ["", *(f"{name}: {value}" for name, value in others.items() if value is not None)]
        for name, values in (("images, MB", self.images_mb), ("RSS, MB", self.rss_mb)):
            if values:
                lines.append(f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in values.items()))
        for word, tests in (("failed", self.failed), ("skipped", self.skipped)):
            lines += [f"{word}: {name}: {reason.partition(chr(10))[0]}" for name, reason in tests.items()]
        return "\n".join(lines)
