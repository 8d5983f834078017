"""A reader of Erlang terms as ``file:consult`` takes them: tuples, lists, strings, atoms, comments; a dot ends each."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r'\s+|%[^\n]*|(?P<string>"(?:[^"\\]|\\.)*")|(?P<atom>[a-z][A-Za-z0-9_@]*)|(?P<mark>[{}\[\],]|\.(?=\s|$))'
)
Term = str | tuple["Term", ...] | list["Term"]


def consult(text: str) -> list[Term]:
    """Return the terms of a file; atoms begin with a colon. Raises ValueError."""
    tokens, at = [], 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"no term at {text[at : at + 20]!r}")
        at = found.end()
        if found.lastgroup:
            tokens.append((found.lastgroup, found.group()))
    terms: list[Term] = []
    while tokens:
        terms.append(_term(tokens))
        if tokens.pop(0) != ("mark", "."):
            raise ValueError("a dot is missing")
    return terms


def _term(tokens: list[tuple[str, str]]) -> Term:
    kind, word = tokens.pop(0)
    if kind == "string":
        return word[1:-1]
    if kind == "atom":
        return f":{word}"
    if word not in "{[":
        raise ValueError(f"{word} where a term begins")
    end, items = {"{": "}", "[": "]"}[word], []
    while tokens[0] != ("mark", end):
        items.append(_term(tokens))
        if tokens[0] == ("mark", ","):
            tokens.pop(0)
            if tokens[0] == ("mark", end):
                raise ValueError("a comma before the end")
        elif tokens[0] != ("mark", end):
            raise ValueError(f"{tokens[0][1]} where a comma is due")
    tokens.pop(0)
    return tuple(items) if word == "{" else items
