"""The text of `halimede status` for a system that does not answer."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from halimede.cli.commands.status import Snapshot, render


@pytest.mark.parametrize(
    ("snapshot", "broker", "gm"),
    [
        (Snapshot("b:1883", reachable=False, error="e"), "b:1883: no answer", ""),
        (Snapshot("b:1883", refused="it refuses these credentials", error="e"), "it refuses these credentials", ""),
        (Snapshot("b:1883", error="e"), "b:1883", "no answer"),
    ],
    ids=["no broker", "broker refuses the user", "no global manager"],
)
def test_the_global_manager_has_a_line_only_if_it_was_asked(snapshot: Snapshot, broker: str, gm: str) -> None:
    text = io.StringIO()
    render(Console(file=text, width=200), snapshot, snapshot.checks())
    lines = text.getvalue().splitlines()
    assert broker in lines[0]
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("GM")] == ([gm] if gm else [])
