"""The list of programs: ``make bench``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def programs() -> Iterator[tuple[str, str]]:
    """Yield the name of each program and the first line of its docstring. A process of ``x`` is a module ``x_...``."""
    texts = {path.stem: path.read_text() for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}
    names = [name for name, text in texts.items() if '__name__ == "__main__"' in text]
    for name in names:
        if not any(name.startswith(f"{other}_") for other in names):
            yield name, (ast.get_docstring(ast.parse(texts[name])) or "").partition("\n")[0]


if __name__ == "__main__":
    print('Measurements: make bench NAME=easy ARGS="--rounds 1" runs one, with its options (ARGS=--help).\n')
    for name, text in programs():
        print(f"  {name:17} {text}")
