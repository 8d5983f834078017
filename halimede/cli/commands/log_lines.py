"""How lines of workers' logs are shown, and which of them are recent enough. Nothing here talks to anyone."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from halimede.cli.output import clean, console

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
LEVELS = {"warning": "yellow", "error": "red", "critical": "red"}
#: fields of a log line that have their own place, or that the prefix says already
PLACED = frozenset({"event", "timestamp", "level", "worker", "service", "node", "namespace"})


def show(worker: str, line: str, *, several: bool) -> None:
    """Print a line, after its worker's name where there are several; in colour on a terminal."""
    if not sys.stdout.isatty():
        print(f"{worker}  {line}" if several else line, flush=True)
        return
    shown = Text()
    if several:
        shown.append(f"{worker}  ", style=COLOURS[zlib.crc32(worker.encode()) % len(COLOURS)])
    console().print(shown.append_text(pretty(line)))


def pretty(line: str) -> Text:
    """Return a log line for a terminal: structlog's JSON as time, event and fields; anything else as it is."""
    fields = _fields(line)
    if "event" not in fields:
        return Text(clean(line))
    time = str(fields.get("timestamp", ""))[11:19]
    level = str(fields.get("level", ""))
    shown = Text(f"{time} ", style="dim")
    shown.append(f"{level:<8}", style=LEVELS.get(level, "dim"))
    shown.append(clean(str(fields["event"])), style="bold")
    for name, value in fields.items():
        if name not in PLACED:
            shown.append(clean(f"  {name}={value}"), style="dim")
    return shown


def since(lines: Iterable[str], start: datetime) -> Iterator[str]:
    """Return the lines from a time on. One without a time of its own belongs to the line before it."""
    recent = False
    for line in lines:
        if (told := _time(line)) is not None:
            recent = told >= start
        if recent:
            yield line


def _time(line: str) -> datetime | None:
    try:
        told = datetime.fromisoformat(str(_fields(line)["timestamp"]))
    except (KeyError, ValueError):
        return None
    return told if told.tzinfo else told.replace(tzinfo=UTC)


def _fields(line: str) -> Mapping[str, Any]:
    try:
        fields: Any = json.loads(line) if line.startswith("{") else None
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {}
