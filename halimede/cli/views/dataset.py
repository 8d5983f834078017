"""What is in a dataset, drawn: its figures, a histogram of its classes, the entries that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from halimede.cli.output import age, clean, table
from halimede.cli.views.tables import dig

#: classes that are drawn, and characters of the longest bar and of a class's name
DRAWN, WIDTH, NAME = 25, 40, 40


def parts(body: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield titles and contents of what is known of a dataset; nothing before it was counted."""
    facts = dig(body, "status", "dataset")
    if not isinstance(facts, Mapping):
        return
    classes, number, broken = facts.get("classes") or [], facts.get("numberOfClasses") or 0, facts.get("broken") or []
    faults = facts.get("numberBroken") or 0
    lines = [
        f"{facts.get('numberOfSamples') or 0:,} samples, {size(facts.get('size') or 0)}",
        f"{number:,} classes" if number else "no classes: no column, field or folder says them",
        f"{faults:,} entries cannot be used" if faults else "every entry can be used",
        f"counted {age(facts.get('countedAt'))} ago",
    ]
    yield "Contents", Text("\n".join(lines))
    if classes:
        yield "Classes", histogram(classes, number)
    if broken:
        more = f" (the first {len(broken)} of {faults:,})" if faults > len(broken) else ""
        rows = [[str(each.get("name")), str(each.get("reason"))] for each in broken]
        yield f"Broken entries{more}", table(["ENTRY", "REASON"], rows)


def histogram(classes: Sequence[Mapping[str, Any]], number: int) -> Table:
    """Return a bar for each of the most frequent classes, and what the others have together."""
    counts = [(str(each.get("name")), int(each.get("count") or 0)) for each in classes]
    total, longest = sum(count for _, count in counts), max(count for _, count in counts)
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(no_wrap=True)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(width=WIDTH, no_wrap=True)
    for name, count in counts[:DRAWN]:
        short = clean(name if len(name) <= NAME else f"{name[: NAME - 1]}\u2026")
        bar = Bar(max(1, longest), 0, count, width=WIDTH, color="cyan")
        drawn.add_row(Text(short), f"{count:,}", f"{count / max(1, total):.1%}", bar)
    if number > DRAWN:
        rest = sum(count for _, count in counts[DRAWN:])
        text = f"{rest:,}" if number <= len(counts) else f"over {rest:,}"
        drawn.add_row(Text(f"{number - DRAWN:,} more", style="dim"), text, f"{rest / max(1, total):.1%}", "")
    return drawn


def size(number: int) -> str:
    """Return bytes as people read them."""
    value, unit = float(number), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
