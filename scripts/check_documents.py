"""Checks the documents' style: the rules of docs/style.md, as ``make check`` runs them.

A finding is an error with file, line and what to do. There is no list of exceptions.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: generated from the code, whose docstrings have a check of their own
GENERATED = ("topics.md", "docs/reference/")
#: words of one sentence; a code span, a link or a number is one word
LONGEST = 30
#: words of a paragraph, a list item or a table cell, in the documents with which a reader of the code begins
PARAGRAPH, SHORT = 90, frozenset({"architecture.md", "learning-loop.md", "training.md"})
#: languages of code blocks: a test runs ``sh``, or lists it as not run (docs/style.md)
LANGUAGES = frozenset({"sh", "text", "console", "python", "javascript", "yaml", "json", "toml"})
#: words and phrases that are not used, and what to write instead
WORDS = {
    "beside": "next to, in addition to, compared with",
    "tells?|told|hears?|heard": "send, report, configure, receive, learn",
    "(?:says?|said|saying) (?:so|anything|it|otherwise)|(?:is|are|be|been) said": "report, specify, set",
    "wish(?:es|ed)?": "desired state, request",
    "whoever": "the client that, the process that, anyone who",
    "anew": "again, or the verb alone",
    "for ever": "forever, without limit",
    "nothing but|no other than|what is there": "only",
    "of (?:its|theirs|ours|yours|mine)(?= (?:is|are|takes|goes|has|was)|[,.;:)]|$)": "its X, an X of the service",
    "desk|shelf|glimpses?|riddles?": "the term of docs/glossary.md",
    "(?:has|have|had|with|without|no|makes?|any|more) room": "space, capacity, credits",
}
FORBIDDEN = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), better) for words, better in WORDS.items()]
NEGATION = r"(?<!or )(?<!nor )(?<!and )\b(?:not|no|never|nobody|nothing|none|neither|cannot)\b"
TWICE = re.compile(rf"{NEGATION}(?! (?:or|nor|and)\b)[^.,;:()|]*?{NEGATION}", re.IGNORECASE)


def documents() -> Iterator[Path]:
    """Yield the Markdown files of the repository that people write."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    yield from (ROOT / each for each in sorted(listed) if not each.startswith(GENERATED) and (ROOT / each).exists())


def paragraphs(text: str) -> list[str]:
    """Return a line of prose: code, links and emphasis as plain words; a table's cells apart."""
    text = re.sub(r"`+[^`]+`+", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>|\*\*|(?<!\w)[*_]|[*_](?!\w)", "", text)
    return re.split(r"(?<!\\)\|", text)


def words_of(text: str) -> list[str]:
    """Return the words of plain text."""
    return re.findall(r"[\w'/.-]*\w[\w'/.-]*", text)


def prose(sentence: str) -> Iterator[str]:
    """Yield what is wrong with a sentence."""
    words = words_of(sentence)
    if len(words) > LONGEST:
        yield f"a sentence of {len(words)} words: split it ({' '.join(words[:6])} ...)"
    for pattern, better in FORBIDDEN:
        yield from (f"`{found}`: use {better}" for found in pattern.findall(sentence))
    if found := TWICE.search(sentence):
        yield f"a double negation: `{found[0]}`"


def form(lines: list[str], paragraph: float) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with headings, fences and prose. ``paragraph``: the most words of one."""
    fence, level = "", 0
    for number, line in enumerate(lines, 1):
        if mark := re.match(r"\s*(`{3,})(\w*)", line):
            if not fence and mark[2] not in LANGUAGES:
                yield number, f"a code block without a language: one of {', '.join(sorted(LANGUAGES))}"
            fence = "" if fence else mark[1]
            continue
        if fence:
            continue
        if heading := re.match(r"(#+) ", line):
            deeper = len(heading[1])
            if deeper > level + 1:
                yield number, f"a heading of level {deeper} below one of level {level}"
            if lines[number : number + 1] not in ([], [""]) or (number > 1 and lines[number - 2]):
                yield number, "a heading without an empty line before and after it"
            level = deeper
        if line != line.rstrip():
            yield number, "spaces at the end of the line"
        for text in paragraphs(line):
            if (count := len(words_of(text))) > paragraph:
                yield number, f"a paragraph of {count} words: split or shorten it"
            for sentence in re.split(r"(?<=[.!?:;])\)?\s+", text.strip()):
                yield from ((number, wrong) for wrong in prose(sentence))


def links(path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield relative links that lead nowhere, to a file or to a heading."""
    for number, line in enumerate(lines, 1):
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", re.sub(r"`[^`]*`", "", line)):
            file = (path.parent / target) if target else path
            if not file.exists():
                yield number, f"a link to a file that does not exist: {target}"
            elif anchor and anchor not in anchors(file):
                yield number, f"a link to a heading that does not exist: {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def main() -> int:
    """Print what is wrong with each document; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, help="documents to check (default: all)")
    failed = False
    for path in [each.resolve() for each in parser.parse_args().files] or documents():
        lines = path.read_text().split("\n")
        paragraph = PARAGRAPH if path.name in SHORT else math.inf
        for number, wrong in sorted({*form(lines, paragraph), *links(path, lines)}):
            print(f"Error: {os.path.relpath(path, ROOT)}:{number}: {wrong}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
