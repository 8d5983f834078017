"""A service's description says how samples go up, where that is not as they came."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml
from rich.console import Console

from halimede.api import kind_of
from halimede.cli.commands.describe import render
from tests.unit.api.samples import TIERS


def described(**edge: Any) -> str:
    body = yaml.safe_load(TIERS)
    del body["spec"]["edgeWorker"]["maxBytes"]
    body["spec"]["edgeWorker"] |= edge
    body["metadata"]["namespace"] = "default"
    out = Console(file=io.StringIO(), width=140)
    render(out, kind_of("ji"), body, [])
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        ({"maxBytes": 60_000}, "uploads unchanged, at most 60000 bytes each"),
        ({"encoding": "png", "maxBytes": 5000}, "uploads as png, at most 5000 bytes each"),
        ({"encoding": "raw"}, "uploads as raw"),
        ({"detector": {"name": "finder"}}, "samples are crops of the boxes of finder, at most 100 a frame"),
        ({"detector": {"name": "finder"}}, "frames from camera site uploads as jpeg"),
        ({"upload": "regions"}, "uploads the regions of hard frames with uncertain boxes"),
    ],
)
def test_how_samples_go_up_is_said(edge: dict[str, Any], words: str) -> None:
    said = described(**edge)
    assert words in said
    assert "by Learned uploads as jpeg" in said  # the tier's


def test_the_greatest_age_of_frames_is_shown() -> None:
    assert "frames from cameras a, b, dropped if older than 800 ms" in described(
        source={"cameras": ["a", "b"], "maxAgeMs": 800}
    )
    assert "older" not in described()


def test_the_budget_of_each_tier_is_shown() -> None:
    edge, tier = described(targetUploadRatio=0.25, auditShare=0.05).split(" tier ", 1)
    assert "budget: uploads of 25.0% of the samples in the long run" in edge
    assert "audits: uploads of 5.0% of the easy samples as well" in edge
    assert "budget" in tier
    without = described(targetUploadRatio=None, auditShare=0.0).split(" tier ", 1)[0]
    assert "no budget: the rule alone decides (targetUploadRatio sets one)" in without
    assert "audits" not in without


def test_what_goes_up_as_it_came_is_not_spoken_of() -> None:
    assert described().count("uploads as ") == 1
    assert "uploads unchanged" not in described(encoding="as-it-came")
