"""Builds the site of the documents into build/pages: ``make docs``.

The documents are copied to build/site-source under their paths in the repository, so that links between them stay as
they are. A link to a file that is no document, such as a source file, becomes plain text. JSON schemas of all bodies
are written into docs/schemas, and topics link to them. MkDocs then checks all links and headings: a broken one ends
the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from halimede.contract.render import schemas, write_files

ROOT = Path(__file__).resolve().parents[1]
SOURCE, CONFIG = "build/site-source", "build/mkdocs.yml"
#: files that documents show or offer
SHOWN = frozenset({".png", ".svg", ".css", ".json"})
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!\w+:)[^)#\s]+)((?:#[^)]*)?)\)")
#: a file below docs/schemas, which only the site has; the heading of a topic
SCHEMA, TOPIC = re.compile(r"`docs/(schemas/[\w-]+\.json)`"), re.compile(r"^### ([a-z-]+)$", re.MULTILINE)
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def files() -> list[Path]:
    """Return the documents and their pictures, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "docs"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = [Path(each) for each in listed if (ROOT / each).is_file()]
    return [path for path in paths if path.suffix == ".md" or path.suffix in SHOWN]


def staged(text: str, path: Path, known: set[Path]) -> str:
    """Return a document for the site: links to what is not on it are plain text."""

    def link(found: re.Match[str]) -> str:
        target = (ROOT / path).parent.joinpath(found[3]).resolve()
        on_site = target.is_relative_to(ROOT) and target.relative_to(ROOT) in known
        return found[2] if target.exists() and not on_site else found[0]

    if path.name == "topics.md":
        text = TOPIC.sub(r"\g<0>\n\nJSON Schema: [\1.json](docs/schemas/\1.json)", text)
    parts = FENCE.split(SCHEMA.sub(r"[\1](\1)", text))
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(link, part) for part in parts)


def config(known: set[Path]) -> str:
    """Return the configuration with the files for each ``*`` of its navigation."""
    text = (ROOT / "mkdocs.yml").read_text()

    def entries(found: re.Match[str]) -> str:
        return f"{found[1]}- {found[2]}:\n" + "".join(
            f"{found[1]}    - {path}\n" for path in _others(found[3], text, known)
        )

    return re.sub(r"^( *)- ([^:\n]+): (\S+)/\*\.md\n", entries, text, flags=re.MULTILINE)


def _others(folder: str, text: str, known: set[Path]) -> Iterator[Path]:
    """Yield the documents of a folder that the navigation does not name itself."""
    named = set(re.findall(r"- (\S+\.md)$", text, re.MULTILINE))
    yield from sorted(p for p in known if str(p.parent) == folder and p.suffix == ".md" and str(p) not in named)


def main() -> int:
    """Stage the documents and build the site; return the exit code."""
    found = files()
    known = set(found)
    shutil.rmtree(ROOT / SOURCE, ignore_errors=True)
    for path in found:
        target = ROOT / SOURCE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(staged((ROOT / path).read_text(), path, known))
        else:
            shutil.copyfile(ROOT / path, target)
    write_files(schemas(), (), ROOT / SOURCE / "docs" / "schemas")
    (ROOT / CONFIG).write_text(config(known))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", CONFIG]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of another program
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if not code:
        print("The site is in build/pages: open index.html. Its search needs: python -m http.server -d build/pages")
    return code


if __name__ == "__main__":
    sys.exit(main())
