"""docs/mining.md names every algorithm with its parameters and defaults, and its code runs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np

from halimede.messages import Prediction
from halimede.mining import create, hardness_of, judge, registry

TEXT = (Path(__file__).parents[3] / "docs/mining.md").read_text()


def test_every_built_in_algorithm_is_in_a_table_with_its_parameters():
    registry.names()
    rows = {line.split("|")[1]: line for line in TEXT.splitlines() if line.startswith("| `")}
    for name, algorithm in registry._algorithms.values():
        if not algorithm.__module__.startswith("halimede.mining."):
            continue
        (row,) = [line for names, line in rows.items() if f"`{name}`" in names]
        for field in (each for each in fields(algorithm) if each.init):
            assert f"`{field.name}`" in row, f"{name}: {field.name}"
            if isinstance(field.default, str | int | float) and field.name != "cut":
                number = isinstance(field.default, float | int) and not isinstance(field.default, bool)
                shown = f"{field.default:g}" if number else str(field.default).lower()
                assert re.search(rf"`{field.name}`( T)? \({re.escape(shown)}\b", row), f"{name}: {field.name} ({shown})"


def test_the_code_of_the_documentation_runs(tmp_path, monkeypatch):
    own, script = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    (tmp_path / "few_votes.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    names = re.findall(r"^\| `(few_votes\S*)` \|", TEXT, re.MULTILINE)
    assert names == ["few_votes.py:FewVotes", "few_votes:FewVotes"]
    for name in names:
        miner = create(f"{tmp_path}/{name}" if ".py:" in name else name, {"cut": "0.3"})
        assert judge(miner, Prediction(value={"votes": ["a", "a", "b"]})).hard
        assert not judge(miner, Prediction(value={"votes": ["a"]})).hard
        assert judge(miner, Prediction()).error == "the answer has no votes"
    names = {"probabilities": np.array([[0.9, 0.1], [0.9, 0.9]])}
    exec(script, names)
    assert np.isnan(hardness_of(names["miner"], names["probabilities"])).tolist() == [False, True]  # type: ignore[call-overload]
