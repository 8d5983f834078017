"""A field that a type loses is noticed by a fact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds.removal import fields
from tests.waiting import patience

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("owner", sorted({field.owner for field in fields()}))
def test_a_type_without_a_field_fails_a_fact(owner: str) -> None:
    removed = [str(field) for field in fields() if field.owner == owner]
    command = [sys.executable, "-m", "tests.seeds.removal", *removed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(380), check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fields_of_all_types_of_the_documents_are_removed() -> None:
    owners = {field.owner for field in fields()}
    assert owners >= {
        "NeptuneSpec", "NeptuneEdgeWorker", "NeptuneCloudWorker", "WorkerSpec", "Algorithm", "Status", "Condition",
        "Metric", "NodeStatus", "Output", "ModelOutput", "TaskInfo", "WorkerInfo", "InferenceModelSpec", "ModelFile",
        "ModelSpec", "DatasetSpec",
    }  # fmt: skip
