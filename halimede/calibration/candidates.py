"""The rules that a calibration tries, with their parameters, for the answers that a model gives. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from halimede.api.mining import AFTER
from halimede.messages import Prediction
from halimede.mining.agreement import has_votes

#: the rule that a calibration fits from answers: learned deferral
LEARNED = "Learned"
#: quantiles of the boxes' scores that are tried as limits of uncertain boxes
SCORE_QUANTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule and its parameters, as texts by name; the calibration sets the parameter of its threshold."""

    rule: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_learned(self) -> bool:
        """Whether it is learned deferral, which is fitted and has no parameters."""
        return self.rule.lower() == LEARNED.lower()


def candidates(configured: Candidate | None, mode: str, answers: Sequence[Prediction]) -> list[Candidate]:
    """Return the rules to try; of equally good ones the first is chosen.

    Learned, which needs the model's answers, is the first, then the service's own. ``configured``: the service's own;
    None: it has none. ``mode``: when the rules judge; ``answers``: those of the small model.
    """
    own = [configured] if configured else []
    if mode != AFTER:
        return _distinct([*own, Candidate("Sharpness")])
    if any(answer.boxes is not None for answer in answers):
        return _distinct([Candidate(LEARNED), *own, *_of_boxes(answers)])
    named = [Candidate(name) for name in ("Margin", "Entropy", "MaxProbability")]
    votes = [Candidate("Agreement")] if all(has_votes(answer) for answer in answers) else []
    return _distinct([Candidate(LEARNED), *own, *votes, *named])


def _of_boxes(answers: Sequence[Prediction]) -> Iterator[Candidate]:
    """Yield the rules of boxes with every ``empty``, and limits from the scores of these boxes."""
    scores = [box.score for answer in answers for box in answer.boxes or ()]
    limits = [f"{limit:.2f}" for limit in np.quantile(scores, SCORE_QUANTILES).clip(0.01, 0.99)] if scores else []
    low, *_ = limits or ["0"]
    for empty in ("hard", "easy"):
        yield Candidate("Threshold", {"empty": empty})
        for limit in dict.fromkeys(("0.5", *limits)):
            yield Candidate("IBT", {"threshold_box": limit, "empty": empty})
        yield Candidate("UncertainBoxes", {"empty": empty})
        for bottom, top in product(dict.fromkeys(("0", low)), dict.fromkeys(limits)):
            if float(bottom) < float(top):
                yield Candidate("UncertainBoxes", {"low": bottom, "high": top, "empty": empty})
        for rule, score in product(("BoxCount", "SmallestBox"), dict.fromkeys(("0", *limits))):
            yield Candidate(rule, {"score": score, "empty": empty})


def _distinct(options: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without repetitions; a rule's name has any case."""
    first: dict[object, Candidate] = {}
    for option in options:
        first.setdefault((option.rule.lower(), *sorted(option.parameters.items())), option)
    return list(first.values())
