"""The page of a report (``render``), and the parts that reports have in common. All functions return HTML.

Pure. Given text is escaped. HTML, CSS and formats of pictures, which the docstrings name, are put in as they are.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template

#: the page; its policy forbids a browser to load anything
FRAME = Template("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>halimede: $title</title>
<style>
$style</style></head><body>
<header><h1>$title</h1>
<p class="soft">$intro</p></header>
<div class="tiles">$tiles</div>
$body</body></html>
""")


def render(title: str, intro: str, tiles: Iterable[str], body: str, *, style: str = "") -> str:
    """Return a whole page. ``tiles`` (of ``tile``) and ``body`` are HTML; ``style`` is CSS after the shared style."""
    shared = resources.files(__package__).joinpath("style.css").read_text("utf-8")
    return FRAME.substitute(
        title=html.escape(title), intro=html.escape(intro), tiles="".join(tiles), body=body, style=shared + style
    )


def tile(value: str, name: str, note: str, *, met: bool = True) -> str:
    """Return a tile with one of the numbers that people read first, its name, and a note such as its goal.

    ``met``: whether the goal is met, which the colour shows.
    """
    parts = f"<b>{html.escape(value)}</b><span>{html.escape(name)}</span><i>{html.escape(note)}</i>"
    return f'<div class="tile {"met" if met else "missed"}">{parts}</div>'


def table(rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> str:
    """Return a table that scrolls on a narrow screen; the first cell of a row is its name."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heading)
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="wide"><table>{thead}<tbody>{body}</tbody></table></div>'


def keys(colours: Mapping[str, str]) -> str:
    """Return the legend of a chart (its key): ``colours``, which are CSS, by name."""
    items = "".join(
        f'<span class="key" style="background:{colour}"></span>{html.escape(name)}' for name, colour in colours.items()
    )
    return f'<p class="keys">{items}</p>'


def picture(data: bytes, alt: str, *, kind: str = "jpeg") -> str:
    """Return a picture that is part of the page. ``kind``: the format of ``data``; ``alt``: its description."""
    return f'<img alt="{html.escape(alt)}" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'
