"""The output of commands: JSON, YAML and tables on the terminal, files, and one red line for an error.

Texts of other programs are made safe first (``clean``): no escape sequence of theirs reaches the terminal.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from halimede.cli.options import Format
from halimede.errors import InvalidFieldError
from halimede.health_checks.resource_fields import time_of
from halimede.system.files import write_atomic

#: colours of phases, conditions and levels in tables
COLOURS = {
    "Running": "green", "Ready": "green", "online": "green", "True": "green",
    "Pending": "yellow", "Degraded": "yellow", "Warning": "yellow", "Terminating": "yellow", "Unknown": "yellow",
    "Failed": "red", "offline": "red", "False": "red", "online,drained": "yellow", "offline,drained": "red",
    "ok": "green", "fact": "cyan", "warning": "yellow", "problem": "red",
    "running": "green", "connecting": "yellow", "stalled": "yellow", "failed": "red", "gone": "red",
}  # fmt: skip
#: columns of a console: so many that no line is cut or folded; a terminal wraps lines, a pipe receives them whole
ENDLESS = 10_000
#: control characters that JSON allows unescaped, and characters that change the direction of text
_ACTED_ON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def console() -> Console:
    """Return a console on standard output that never folds a line."""
    return Console(width=ENDLESS, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """Show a warning in yellow on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(clean(text), style="yellow"))


def fail(text: str) -> None:
    """Show an error as one red line on standard error; the caller continues."""
    line = clean(f"Error: {' '.join(text.split())}")
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(line, style="red"))


def plain(value: Any) -> Any:
    """Return messages as plain data (dict, list, text, numbers), with the field names that messages have."""
    return msgspec.to_builtins(value)


def dump(value: Any, form: Format) -> None:
    """Print plain data as JSON, or as YAML for all other forms."""
    if form is Format.JSON:
        sys.stdout.write(as_json(value, indent=2) + "\n")
    else:
        sys.stdout.write(to_yaml(value))


def as_json(value: Any, indent: int | None = None) -> str:
    """Return plain data as JSON without characters that terminals interpret."""
    return escape_json(json.dumps(value, indent=indent, ensure_ascii=False))


def escape_json(text: str) -> str:
    """Return a JSON text with escapes for characters that terminals interpret: C1 controls, changes of direction."""
    return _ACTED_ON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_yaml(value: Any) -> str:
    """Return plain data as YAML, in the order of its fields."""
    from ruamel.yaml import YAML  # here, because only YAML output needs it

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel's own switch, typed as None
    yaml.width = ENDLESS
    out = io.StringIO()
    yaml.dump(value, out)
    return out.getvalue()


def as_list(items: Sequence[Any]) -> dict[str, Any]:
    """Return several resources as one document of the kind List, as kubectl does."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


@contextmanager
def writable(option: str, path: Path) -> Iterator[None]:
    """Raise InvalidFieldError, which names ``option``, in place of an OSError in the block, which writes ``path``."""
    try:
        yield
    except OSError as error:
        raise InvalidFieldError(option, str(path), f"cannot be written: {error.strerror}") from error


def write_file(option: str, path: Path, data: bytes) -> None:
    """Write a file atomically, and make its folder. Raises InvalidFieldError, which names ``option``."""
    with writable(option, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table without lines; a cell that is a word of ``COLOURS`` has its colour. Cells are made safe."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(clean_cell(cell), style=COLOURS.get(cell, "")) for cell in row))
    return grid


def clean(text: str) -> str:
    """Return untrusted text with U+FFFD for characters that a terminal acts on; tabs and ends of lines stay."""
    return "".join(c if c.isprintable() or c in "\t\n" else "\ufffd" for c in text)


def clean_cell(text: str) -> str:
    """Return untrusted text as ``clean`` does, on one line: for a cell of a table."""
    return clean("".join(" " if c.isspace() else c for c in text))


def age(stamp: Any, now: datetime | None = None) -> str:
    """Return how long ago an ISO time was: ``12s``, ``100m``, ``3h``, ``1d``; ``-`` without a time.

    It is in the largest unit of which it has at least two (days: at least one), else in seconds. ``now`` None: the
    present time.
    """
    then = time_of(stamp)
    if then is None:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - then).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
