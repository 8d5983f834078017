"""Checks names, folders and complexity: the rules of CONTRIBUTING.md, as ``make check`` runs them.

What broke a rule before it was made is listed in ``scripts/house.toml``. The list only shrinks: an entry that is no
longer needed is an error, too. ``--write`` writes the list anew.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "scripts" / "house.toml"
PACKAGES = ("halimede", "services")
#: modules of one folder; folders in which one module is one of many alike are apart
MODULES, ALIKE = 24, frozenset({"commands", "algorithms", "mining"})
COMPLEXITY = 10
#: words that a stranger does not look for: docs/glossary.md has those to use
WORDS = re.compile(
    r"say|says|said|tells?|told|hears?|heard|wish|wishes|want|wants|wanted|beside|ways?|places?|turns?|rooms?|looks?"
    r"|figures?|words?|desk|shelf|glimpses?"
)
HEAD = """\
# What broke a rule of scripts/check_house.py before the rule was made. This list only shrinks.
# Made by `python scripts/check_house.py --write`.
"""

Findings = dict[str, set[str]]


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the path of each module, relative to the repository, and its syntax tree."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def words_of(identifier: str) -> list[str]:
    """Return the words of an identifier in snake_case or CamelCase."""
    return re.findall(r"[a-z]+|[A-Z]+(?![a-z])", re.sub(r"([A-Z])([a-z]+)", lambda m: f"_{m[0].lower()}", identifier))


def names() -> tuple[Findings, Findings]:
    """Return classes that stand twice, and identifiers with words that are not to be used, each with their modules."""
    classes: dict[str, list[str]] = defaultdict(list)
    words: set[str] = set()
    for path, tree in modules():
        words |= {path for word in words_of(Path(path).stem) if WORDS.fullmatch(word)}
        for node in ast.walk(tree):
            defined = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if defined and any(map(WORDS.fullmatch, words_of(node.name))):
                words.add(f"{path}: {node.name}")
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(path)
    return {"classes": {name for name, where in classes.items() if len(where) > 1}}, {"words": words}


def folders() -> Findings:
    """Return folders with too many modules."""
    counts: dict[str, int] = defaultdict(int)
    for path, _ in modules():
        if Path(path).name != "__init__.py":
            counts[str(Path(path).parent)] += 1
    return {"folders": {path for path, n in counts.items() if n > MODULES and Path(path).name not in ALIKE}}


def complexity() -> Findings:
    """Return functions that take more decisions than one reads at once (McCabe, ruff's C901)."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "C901", "--output-format", "json"]
    command += ["--config", f"lint.mccabe.max-complexity={COMPLEXITY}", *PACKAGES]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = set()
    for each in json.loads(printed):
        name = re.findall(r"`(.*?)`", each["message"])[0]
        found.add(f"{Path(each['filename']).relative_to(ROOT)}: {name}")
    return {"complexity": found}


def main() -> int:
    """Compare what there is with the list; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the list of exceptions anew")
    write = parser.parse_args().write
    classes, words = names()
    found = classes | words | folders() | complexity()
    if write:
        lines = (f"{rule} = {json.dumps(sorted(each), indent=2)}\n" for rule, each in found.items())
        LIST.write_text(HEAD + "\n" + "\n".join(lines))
        return 0
    listed = tomllib.loads(LIST.read_text())
    fixes = {
        "classes": "this class name stands twice: give it a name of its own",
        "words": "this name has a word that docs/glossary.md does not: use the field's term",
        "folders": f"this folder has more than {MODULES} modules: part it, or merge what is one thought",
        "complexity": f"this function has a complexity over {COMPLEXITY}: part it",
    }
    wrong = [f"{each}: {fixes[rule]}" for rule, all_ in found.items() for each in sorted(all_ - set(listed[rule]))]
    gone = [f"{each} ({rule})" for rule, all_ in found.items() for each in sorted(set(listed[rule]) - all_)]
    for line in wrong:
        print(f"Error: {line}", file=sys.stderr)
    for line in gone:
        print(f"Error: scripts/house.toml: {line} is mended: remove it from the list", file=sys.stderr)
    return 1 if wrong or gone else 0


if __name__ == "__main__":
    sys.exit(main())
