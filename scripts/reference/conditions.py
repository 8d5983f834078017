"""The page of phases, reasons and events, from ``reasons.toml``, which must have all reasons of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scripts.reference.markdown import IncompleteError, code, document, table
from scripts.reference.source import trees

FILE = Path(__file__).with_name("reasons.toml")
#: a reason: several words in one, each with a capital letter
REASON = re.compile(r"[A-Z][a-z]+([A-Z][A-Za-z]*)+")
#: modules whose words of that form are all reasons, names of classes or listed as neither
MODULES = (
    "services/", "halimede/worker/errors.py", "halimede/worker/bootstrap.py", "halimede/worker/model_reload.py",
    "halimede/worker/status_reporter.py", "halimede/models/rollout.py", "halimede/models/errors.py",
    "halimede/datasets/registry.py", "halimede/datasets/listing.py", "halimede/messages/file_facts.py",
)  # fmt: skip
ABOUT = """\
A resource's status has `phase` and `conditions`; each condition has a `reason` in one word, and a `message` that \
names what it is about. `halimede status` shows what to do next. [Cameras](../cameras.md#status-of-a-camera) have \
states of their own."""


def pages() -> dict[str, str]:
    """Return the page."""
    sections = tomllib.loads(FILE.read_text())
    ignored, elsewhere = (set(sections.pop(name)["names"]) for name in ("not_reasons", "elsewhere"))
    known = {name for section in sections.values() for names in section["reasons"] for name in names.split(", ")}
    _check(known, ignored, elsewhere)
    parts = []
    for section in sections.values():
        rows = [[", ".join(map(code, names.split(", "))), *texts] for names, texts in section["reasons"].items()]
        columns = ["phase" if section["title"] == "Phases" else "reason", "meaning", "what to do"]
        parts += [f"## {section['title']}", section.get("about", ""), table(columns, rows)]
    return {"conditions": document("Conditions, reasons and events", "the reasons of the code", ABOUT, *parts)}


def _check(known: set[str], ignored: set[str], elsewhere: set[str]) -> None:
    classes = {n.name for tree in trees().values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    used = set(_words(MODULES))
    if missing := sorted(word for word in used - known - ignored - classes if REASON.fullmatch(word)):
        raise IncompleteError(f"{FILE.name}: describe {', '.join(missing)}, or list them in not_reasons")
    if stale := sorted(known - elsewhere - set(_words(("",)))):
        raise IncompleteError(f"{FILE.name}: remove {', '.join(stale)}: the code has no such reason")


def _words(paths: tuple[str, ...]) -> Iterator[str]:
    """Yield the string constants of modules that are one word."""
    for path, tree in trees().items():
        if path.startswith(paths):
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isalpha():
                    yield node.value
