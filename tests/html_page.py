"""A page as a strict reader sees it: what is opened is closed in order, and what its tiles, tables and cards say."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
#: attributes that make a browser load something
LOADS = frozenset({"src", "href", "xlink:href", "srcset", "action", "poster", "data"})


class HtmlPage(HTMLParser):
    """``mistakes``: elements that are not well nested, and ids that stand twice. ``rows``: cells of all table rows.

    ``tiles``: (value, name, note, met) of each. ``references``: all that a browser would load. ``texts``: the text of
    each element with an id.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.mistakes: list[str] = []
        self.rows: list[list[str]] = []
        self.tiles: list[tuple[str, str, str, bool]] = []
        self.texts: dict[str, str] = {}
        self.tags: list[str] = []
        self.references = re.findall(r"url\(([^)]*)\)|@import\s*([^;]*)", text)
        self._open: list[tuple[str, str, list[str]]] = []
        self._tile: list[str] = []
        self._ids: set[str] = set()
        self.feed(text)
        self.close()
        self.mistakes += [f"<{tag}> is not closed" for tag, _, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.references += [(value, "") for name, value in given.items() if name in LOADS]
        if len(given) != len(attrs):
            self.mistakes.append(f"<{tag}> has an attribute twice")
        if given.get("id") in self._ids:
            self.mistakes.append(f"the id {given['id']} stands twice")
        self._ids |= {given["id"]} if "id" in given else set()
        if tag == "tr":
            self.rows.append([])
        if tag not in VOID:
            kind = given.get("class", "") if tag == "div" else ""
            self._open.append((tag, given.get("id", "") or kind, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        for _, _, texts in self._open:
            texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.mistakes.append(f"</{tag}> closes {self._open[-1][0] if self._open else 'nothing'}")
            return
        _, name, texts = self._open.pop()
        text = "".join(texts).strip()
        if tag in {"td", "th"} and self.rows:
            self.rows[-1].append(text)
        if tag in {"b", "span", "i"} and self._open and self._open[-1][1].startswith("tile "):
            self._tile.append(text)
        if name.startswith("tile "):
            value, title, note = self._tile
            self.tiles.append((value, title, note, name == "tile met"))
            self._tile = []
        elif name:
            self.texts.setdefault(name, text)

    @property
    def external(self) -> list[str]:
        """What a browser would load that is not in the page."""
        return [found for each in self.references for found in each if found and not found.startswith(("data:", "#"))]
