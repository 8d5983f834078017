"""What is shown of models and trainings, and how a service's samples go up where that is not as they came."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
import yaml
from rich.console import Console

from halimede.api import kind_of
from halimede.cli import tables
from halimede.cli.commands.describe import choice, render
from halimede.cli.tables import columns_of
from halimede.health_checks.resources import examine_kind
from tests.unit.api.samples import SAMPLES, TIERS

STATUS = {
    "phase": "Running", "url": "http://edge0:8501", "servingVersion": "4", "active": 1,
    "model": {
        "digest": "a" * 64, "size": 2_000_000, "since": "2026-01-01T00:00:00Z",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}],
        "outputs": [{"name": "y", "datatype": "FP32"}],
    },
    "versions": [{"version": "4", "digest": "a" * 64, "url": "https://h/***"}, {"version": "3", "digest": "b" * 64}],
    "chosen": [{"worker": "edge", "model": "best", "changes": 1}, {"worker": "cloud", "model": ""}],
}  # fmt: skip


def rendered(kind: str, body: dict[str, Any]) -> str:
    out = StringIO()
    render(Console(file=out, width=160), kind_of(kind), body, [])
    return " ".join(out.getvalue().split())


def shown(status: dict[str, Any]) -> str:
    body = {"kind": "InferenceModel", "metadata": {"name": "faces"}, "spec": {"modelName": "faces"}, "status": status}
    return rendered("im", body)


def test_content_signature_address_and_versions_are_shown() -> None:
    text = shown(STATUS)
    for part in ("http://edge0:8501", "version 4", "a" * 64, "? x 64", "scalar", "bbbbbbbbbbbb", "best"):
        assert part in text, part
    assert "cloud" not in text


def test_what_is_not_known_is_left_out() -> None:
    text = shown({"phase": "Pending"})
    assert not any(title in text for title in ("Served", "Content", "Signature", "Versions", "Chosen"))


def test_the_table_shows_where_and_with_which_version_it_answers() -> None:
    body = {"metadata": {"name": "faces"}, "spec": {"deployToLayer": "edge"}, "status": STATUS}
    columns = tables.columns_of("inferencemodels", wide=False, all_namespaces=False)
    row = {column.title: column.cell(body) for column in columns}
    assert row == row | {"LAYER": "edge", "VERSION": "4", "READY": "1", "URL": "http://edge0:8501"}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"name": "small"}, "small"),
        (
            {"selector": {"task": "detection", "labels": ["cat", "dog"]}},
            "the best by accuracy with task detection and labels cat, dog",
        ),
        ({"selector": {"labels": ["cat"], "metric": "f1"}}, "the best by f1 with labels cat"),
        ({"selector": {"metadata": {"site": "north"}}}, "the best by accuracy with metadata site=north"),
        (None, "-"),
    ],
)  # fmt: skip
def test_a_choice_is_said_in_words(model: Any, words: str) -> None:
    assert choice(model) == words


def described(**edge: Any) -> str:
    body = yaml.safe_load(TIERS)
    del body["spec"]["edgeWorker"]["maxBytes"]
    body["spec"]["edgeWorker"] |= edge
    body["metadata"]["namespace"] = "default"
    return rendered("ji", body)


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        ({"maxBytes": 60_000}, "uploads unchanged, at most 60000 bytes each"),
        ({"encoding": "png", "maxBytes": 5000}, "uploads as png, at most 5000 bytes each"),
        ({"encoding": "raw"}, "uploads as raw"),
        ({"detector": {"name": "finder"}}, "samples are crops of the boxes of finder, at most 100 a frame"),
        ({"detector": {"name": "finder"}}, "frames from camera site uploads as jpeg"),
        ({"upload": "regions"}, "uploads the regions of hard frames with uncertain boxes"),
        (
            {"source": {"cameras": ["a", "b"], "maxAgeMs": 800}},
            "frames from cameras a, b, dropped if older than 800 ms",
        ),
    ],
)
def test_how_samples_go_up_is_said(edge: dict[str, Any], words: str) -> None:
    description = described(**edge)
    assert words in description
    assert "by Learned uploads as jpeg" in description  # the tier's


def test_the_budget_of_each_tier_is_shown() -> None:
    edge, tier = described(targetUploadRatio=0.25, auditShare=0.05).split(" tier ", 1)
    assert "budget: uploads of 25.0% of the samples in the long run" in edge
    assert "audits: uploads of 5.0% of the easy samples as well" in edge
    assert "budget" in tier
    without = described(targetUploadRatio=None, auditShare=0.0).split(" tier ", 1)[0]
    assert "no budget: the rule alone decides (targetUploadRatio sets one)" in without
    assert "audits" not in without


def test_what_goes_up_as_it_came_and_at_any_age_is_not_spoken_of() -> None:
    assert described().count("uploads as ") == 1
    assert "older" not in described()
    assert "uploads unchanged" not in described(encoding="as-it-came")


TRAINING_STATUS = {
    "phase": "Done",
    "observedGeneration": 1,
    "conditions": [{"type": "Done", "status": "True", "reason": "TargetReached", "message": "version digits-1"}],
    "training": {
        "state": "done", "round": 12, "rounds": 30, "trainers": 2, "bytes": 12_000, "version": "digits-1",
        "metrics": [{"key": "accuracy", "value": "0.96"}, {"key": "loss", "value": "0.2"}],
    },
}  # fmt: skip


def cells(body: dict[str, Any]) -> dict[str, str]:
    return {column.title: column.cell(body) for column in columns_of("trainingmodels", wide=True, all_namespaces=False)}


def test_a_row_has_round_metrics_and_version() -> None:
    row = cells(SAMPLES["a training"] | {"status": TRAINING_STATUS})
    assert (row["MODEL"], row["ROUND"], row["TRAINERS"]) == ("digits-small", "12/30", "2")
    assert (row["METRICS"], row["VERSION"], row["SENT"]) == ("accuracy 0.96, loss 0.2", "digits-1", "12.0 kB")


def test_a_training_without_a_status_has_a_row_as_well() -> None:
    row = cells(SAMPLES["a training"])
    assert (row["ROUND"], row["TRAINERS"], row["METRICS"], row["VERSION"]) == ("0/30", "0", "-", "-")


def test_a_training_that_is_done_needs_nothing_and_one_that_failed_does() -> None:
    body = SAMPLES["a training"] | {"status": TRAINING_STATUS}
    assert examine_kind("tm", [body]) == []
    failed = SAMPLES["a training"] | {"status": TRAINING_STATUS | {"phase": "Failed"}}
    [task] = examine_kind("tm", [failed])
    assert task.about == "tm/digits"
    assert "halimede logs digits" in task.do
