"""What others say of samples and devices is shown in words, and never acted on by a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from halimede.cli import tables
from halimede.cli.commands.hard import COLUMNS, row_of
from halimede.cli.output import as_json, table
from halimede.contract.examples import EXAMPLES
from halimede.messages import KeptEntry, KeptReply, Prediction
from halimede.mining import create, judge
from halimede.topics import KEPT_REPLY


def test_json_holds_nothing_that_a_terminal_acts_on() -> None:
    said = {"label": "\x1b[31m \x9b31m \x7f \u202e Größe 日本", "n": [1, None]}
    for indent in (None, 2):
        text = as_json(said, indent)
        assert json.loads(text) == said
        assert "Größe 日本" in text
        assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\t", "\v", "\f", "\x85", "\u2028", "\x1c"])
def test_a_cell_stays_in_its_row(end: str) -> None:
    out = Console(file=io.StringIO(), width=200)
    out.print(table(("NAME", "MESSAGE"), [("a", f"first{end}second\x1b[2J"), ("b", "fine")]))
    lines = out.file.getvalue().split("\n")  # type: ignore[attr-defined]
    assert [line.split() for line in lines] == [
        ["NAME", "MESSAGE"],
        ["a", "first", "second\ufffd[2J"],
        ["b", "fine"],
        [],
    ]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("edgeLatencyP50Ms", "0.5", ("edge latency p50", "0.5 ms")),
        ("uploadCloudRatio", "0.1834", ("upload cloud ratio", "18.3%")),
        ("jointAccuracyLow", "0.97", ("joint accuracy low", "97.0%")),
        ("uploadedBytes.gate", "1200000", ("uploaded bytes.gate", "1.2 MB")),
        ("inferenceNumber", "1200", ("inference number", "1200")),
    ],
)
def test_a_metric_is_shown_in_words_with_its_unit(key: str, value: str, shown: tuple[str, str]) -> None:
    assert (tables.metric_name(key), tables.measure(key, value)) == shown


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
