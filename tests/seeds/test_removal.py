"""A field that a type loses is noticed by a fact: ``make mutations`` shows it of every field, and this of three."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_python
from tests.seeds.removal import fields

ROOT = Path(__file__).parents[2]
OWNERS = ("Condition", "TaskInfo", "DatasetSpec")


@pytest.mark.slow
def test_a_type_without_a_field_fails_a_fact() -> None:
    removed = [str(next(field for field in fields() if field.owner == owner)) for owner in OWNERS]
    done = run_python("-m", "tests.seeds.removal", *removed, cwd=ROOT, timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == len(removed)


def test_fields_of_all_types_of_the_documents_are_removed() -> None:
    owners = {field.owner for field in fields()}
    assert owners >= {
        "NeptuneSpec", "NeptuneEdgeWorker", "NeptuneCloudWorker", "WorkerSpec", "Algorithm", "Status", "Condition",
        "Metric", "NodeStatus", "Output", "ModelOutput", "TaskInfo", "WorkerInfo", "InferenceModelSpec", "ModelFile",
        "ModelSpec", "DatasetSpec",
    }  # fmt: skip
