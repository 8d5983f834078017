"""What others say of samples and devices is shown, and never acted on by a terminal."""

from __future__ import annotations

import json

from halimede.cli.output import as_json


def test_json_holds_nothing_that_a_terminal_acts_on() -> None:
    said = {"label": "\x1b[31m \x9b31m \x7f \u202e Größe 日本", "n": [1, None]}
    for indent in (None, 2):
        text = as_json(said, indent)
        assert json.loads(text) == said
        assert "Größe 日本" in text
        assert all(c.isprintable() or c == "\n" for c in text)
