"""The table of `make faults`: a row that was skipped, or failed once in ten, fails the run; nothing counts twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.programs import run_python
from tests.repeat import row_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROWS = """
import pathlib, pytest

def test_fault_01_holds():
    pass

@pytest.mark.parametrize("what", ["a::b", "c[d]"])
def test_attack_02_each(what):
    pass

def test_fault_03_now_and_then():
    try:
        pathlib.Path("{first}").open("x").close()
    except FileExistsError:
        return
    pytest.fail("only the first of all processes makes the file")

@pytest.mark.skip
def test_fault_04_not_here():
    pass

def test_of_no_row():
    pass
"""


@pytest.mark.parametrize(
    ("node_id", "row", "name"),
    [
        ("tests/faults/test_fault_17_x.py::test_fault_17_a_b[repeat3]", ("fault", 17), "test_fault_17_a_b"),
        ("tests/attacks/t.py::test_attack_02_c[repeat0-x::test_fault_09_y]", ("attack", 2), "test_attack_02_c"),
        ("tests/faults/test_fault_17_x.py::test_something", None, ""),
    ],
)
def test_a_test_belongs_to_the_row_in_its_name(node_id: str, row: tuple[str, int] | None, name: str) -> None:
    assert row_of(node_id) == (row and (row, name))


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "with workers"])
def test_every_repetition_counts_and_what_was_skipped_is_no_success(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS.replace("{first}", str(tmp_path / "first")))
    arguments = [
        "-m", "pytest", "-p", "tests.repeat", "--repeat", "3", "--rootdir", str(tmp_path),
        "-c", "/dev/null", "-p", "no:cacheprovider", "-p", "xdist.plugin", *workers, str(tmp_path),
    ]  # fmt: skip
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # each process would load a dozen
    done = run_python(*arguments, cwd=ROOT, env=alone, timeout_s=100)
    assert done.returncode == 1, done.stdout + done.stderr
    table = json.loads((tmp_path / "build" / "faults.json").read_text())
    found = {row["row"]: (row["passed"], row["failed"], row["skipped"]) for row in table["rows"]}
    assert found == {"fault 01": (3, 0, 0), "fault 03": (2, 1, 0), "fault 04": (0, 0, 3), "attack 02": (6, 0, 0)}
    assert (table["repeat"], table["bad"]) == (3, 4)
    assert "test_fault_03_now_and_then (1 failed)" in done.stdout
    assert [row["row"] for row in table["rows"]][-1] == "attack 02"

    if not workers:  # what is passed alone passes with workers: the same table says so
        only = run_python(*arguments, "-k", "fault_01 or attack_02", cwd=ROOT, env=alone, timeout_s=100)
        assert only.returncode == 0, only.stdout
