"""The list of hard samples."""

from __future__ import annotations

import pytest

from halimede.cli.commands.hard import COLUMNS, row_of
from halimede.contract.examples import EXAMPLES
from halimede.messages import KeptEntry, KeptReply, Prediction
from halimede.mining import create, judge
from halimede.topics import KEPT_REPLY


@pytest.mark.parametrize(
    ("name", "parameters", "over"),
    [
        ("Margin", {"threshold_margin": "0.3"}, "0.200"),  # a lead of 0.1, hard up to 0.3
        ("MaxProbability", {"threshold_probability": "0.75"}, "0.200"),
        ("CloudOnly", {}, "-"),
    ],
)
def test_a_hardness_is_shown_as_its_distance_over_the_cut_whatever_the_sign_of_the_rule(
    name: str, parameters: dict[str, str], over: str
) -> None:
    verdict = judge(create(name, parameters), Prediction(label="a", score=0.55, probabilities=[0.55, 0.45]))
    assert verdict.hard
    reply = EXAMPLES[KEPT_REPLY.id]
    assert isinstance(reply, KeptReply)
    entry = KeptEntry(id="0" * 32, number=1, kept_ns=0, image=reply.entries[0].image)
    entry.hardness, entry.cut = verdict.hardness, verdict.cut
    assert dict(zip(COLUMNS, row_of(reply, entry), strict=True))["OVER CUT"] == over
