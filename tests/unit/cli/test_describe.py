"""What `halimede describe` shows of models."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from halimede.api import kind_of
from halimede.cli import tables
from halimede.cli.commands.describe import choice, render

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


def shown(status: dict[str, Any]) -> str:
    out = StringIO()
    body = {"kind": "InferenceModel", "metadata": {"name": "faces"}, "spec": {"modelName": "faces"}, "status": status}
    render(Console(file=out, width=160), kind_of("im"), body, [])
    return out.getvalue()


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
