"""scripts/check_documents.py finds what docs/style.md forbids, and passes what it allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_python

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_documents.py"


def findings(document: Path, text: str) -> list[str]:
    document.write_text(text)
    done = run_python(SCRIPT, document)
    assert done.returncode == bool(done.stderr)
    return [line.split(": ", 2)[2] for line in done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It stands beside the broker.", "`beside`"),
        ("A node is told by GM.", "`told`"),
        (" ".join(["word"] * 31) + ".", "a sentence of 31 words"),
        ("| a cell | " + " ".join(["word"] * 31) + " |", "a sentence of 31 words"),
        ("What is not sent does not count, and nothing that is not sent counts.", "a double negation"),
        ("# A\n\n### B\n", "a heading of level 3 below one of level 1"),
        ("Text\n# A\n", "a heading without an empty line"),
        ("```\nmake\n```", "a code block without a language"),
        ("[a](nowhere.md)", "a link to a file that does not exist: nowhere.md"),
        ("# Title\n\n[a](#other)", "a link to a heading that does not exist: #other"),
        ("Text. ", "spaces at the end of the line"),
    ],
)
def test_it_finds(tmp_path: Path, text: str, found: str) -> None:
    (only,) = findings(tmp_path / "document.md", text)
    assert only.startswith(found)


@pytest.mark.parametrize(
    "text",
    [
        "# Title\n\n[a](#title), `beside` and `told`.\n",
        "```sh\nhalimede told beside\n```\n",
        " ".join(["word"] * 30) + ": " + " ".join(["word"] * 30) + ".",
        "It is not red or not green. It does not stop.",
    ],
)
def test_it_passes(tmp_path: Path, text: str) -> None:
    assert findings(tmp_path / "document.md", text) == []


def test_a_reader_of_the_code_begins_with_short_paragraphs(tmp_path: Path) -> None:
    text = "A paragraph of five words. " * 19
    assert findings(tmp_path / "architecture.md", text.strip()) == ["a paragraph of 95 words: split or shorten it"]
    assert findings(tmp_path / "performance.md", text.strip()) == []
