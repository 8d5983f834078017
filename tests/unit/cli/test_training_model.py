"""Trainings in the command line: the columns of `get`, the parts of `describe`, and what `status` takes them for."""

from __future__ import annotations

from typing import Any

from halimede.cli.tables import columns_of
from halimede.health_checks.resources import examine_kind
from tests.unit.api.samples import SAMPLES

STATUS = {
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
    found = cells(SAMPLES["a training"] | {"status": STATUS})
    assert (found["MODEL"], found["ROUND"], found["TRAINERS"]) == ("digits-small", "12/30", "2")
    assert (found["METRICS"], found["VERSION"], found["SENT"]) == ("accuracy 0.96, loss 0.2", "digits-1", "12.0 kB")


def test_a_training_without_a_status_has_a_row_as_well() -> None:
    found = cells(SAMPLES["a training"])
    assert (found["ROUND"], found["TRAINERS"], found["METRICS"], found["VERSION"]) == ("0/30", "0", "-", "-")


def test_a_training_that_is_done_needs_nothing_and_one_that_failed_does() -> None:
    body = SAMPLES["a training"] | {"status": STATUS}
    assert examine_kind("tm", [body]) == []
    failed = SAMPLES["a training"] | {"status": STATUS | {"phase": "Failed"}}
    [task] = examine_kind("tm", [failed])
    assert task.about == "tm/digits"
    assert "halimede logs digits" in task.do
