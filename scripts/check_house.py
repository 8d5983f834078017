"""Checks names, folders and complexity: the rules of CONTRIBUTING.md, as ``make check`` runs them.

What broke a rule before it was made is listed in ``scripts/house.toml``. The list only shrinks: an entry that is no
longer needed is an error, too. ``--write`` writes the list anew, ``--figures`` counts the names that break a rule.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "scripts" / "house.toml"
PACKAGES = ("halimede", "services")
#: their names inside functions are read as well
SUPPORT = ("tests", "bench", "examples", "scripts")
#: modules of one folder; folders in which one module is one of many alike are apart
MODULES, ALIKE = 24, frozenset({"commands", "algorithms", "mining"})
COMPLEXITY = 10
#: words that a stranger does not look for: docs/glossary.md has those to use
WORDS = re.compile(
    r"say|says|said|tells?|told|hears?|heard|wish|wishes|want|wants|wanted|beside|ways?|places?|turns?|rooms?|looks?"
    r"|figures?|words?|desk|shelf|glimpses?"
)
#: words that name nothing: a variable, parameter or attribute has the noun of the thing that it is
VAGUE = re.compile(
    r"found|said|says?|told|tells?|asked|heard|wish|wishes|wants?|wanted|looks?|looked|made|given|taken|kept|held|left"
    r"|known|seen|gone|others|rest|each|some|news|rooms?|places?|words?|letters?|shelf|desk|figures?|ways?|turns?"
    r"|beside|marks?|standing|swapper|customs|graves|farewells"
)
#: one of these words makes the name of a function a statement
STATEMENT = re.compile(r"is|are|has|have|can|may|must|needs|accepts|matches|contains|exists")
#: endings of a bare participle; nouns that have them
PARTICIPLE = re.compile(r".*(ed|ing|wn|ept|eft|ost|ought|ound|ade|old|ent)|met|seen|given|taken|chosen|written")
NOUNS = re.compile(
    r"agreement|announcement|batching|calibration|client|content|cost|document|embedding|environment|feed|host|mapping"
    r"|markdown|mining|moment|parent|present|requirement|round|seed|speed|threshold|training|warning|sighting"
)
HEAD = """\
# What broke a rule of scripts/check_house.py before the rule was made. This list only shrinks.
# Made by `python scripts/check_house.py --write`.
"""

Findings = dict[str, set[str]]


def modules(packages: Sequence[str] = PACKAGES) -> Iterator[tuple[str, ast.Module]]:
    """Yield the path of each module, relative to the repository, and its syntax tree."""
    for package in packages:
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


def stored_names(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each variable, parameter, attribute and import alias that a module stores."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name


def vague_names(packages: Sequence[str]) -> Counter[str]:
    """Return how often each module stores each vague name."""
    return Counter(
        f"{path}: {name.strip('_').lower()}"
        for path, tree in modules(packages)
        for name in stored_names(tree)
        if VAGUE.fullmatch(name.strip("_").lower())
    )


def functions() -> Findings:
    """Return functions that return a bool and are no statement, and functions that a bare participle names."""
    statements, participles = set(), set()
    for path, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.returns is None:
                continue
            decorators = {ast.unparse(decorator).split("(")[0].split(".")[-1] for decorator in node.decorator_list}
            if node.name.startswith("__") or decorators & {"property", "cached_property", "setter"}:
                continue
            words, returned = node.name.strip("_").split("_"), ast.unparse(node.returns)
            if returned == "bool" and not any(map(STATEMENT.fullmatch, words)):
                statements.add(f"{path}: {node.name}")
            bare = len(words) == 1 and PARTICIPLE.fullmatch(words[0]) and not NOUNS.fullmatch(words[0])
            if bare and returned not in {"None", "bool"}:
                participles.add(f"{path}: {node.name}")
    return {"statements": statements, "participles": participles}


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
    complex_functions = set()
    for warning in json.loads(printed):
        name = re.findall(r"`(.*?)`", warning["message"])[0]
        complex_functions.add(f"{Path(warning['filename']).relative_to(ROOT)}: {name}")
    return {"complexity": complex_functions}


def joined(entries: set[str]) -> list[str]:
    """Return entries as lines: all names of a module are one line."""
    lines: dict[str, list[str]] = defaultdict(list)
    for entry in sorted(entries):
        path, separator, name = entry.partition(": ")
        lines[path + separator].append(name)
    return [path + " ".join(names) for path, names in lines.items()]


def split(lines: list[str]) -> set[str]:
    """Return the entries of lines."""
    entries = set()
    for line in lines:
        path, separator, names = line.partition(": ")
        entries |= {path + separator + name for name in names.split(" ")}
    return entries


def main() -> int:
    """Compare what there is with the list; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the list of exceptions anew")
    parser.add_argument("--figures", action="store_true", help="count the names that break a rule, and end")
    options = parser.parse_args()
    if options.figures:
        print_figures()
        return 0
    classes, words = names()
    vague: Findings = {"vague": set(vague_names((*PACKAGES, *SUPPORT)))}
    findings = classes | words | folders() | complexity() | functions() | vague
    if options.write:
        rules = (f"{rule} = {json.dumps(joined(entries), indent=2)}\n" for rule, entries in findings.items())
        LIST.write_text(HEAD + "\n" + "\n".join(rules))
        return 0
    listed = {rule: split(lines) for rule, lines in tomllib.loads(LIST.read_text()).items()}
    fixes = {
        "classes": "this class name stands twice: give it a name of its own",
        "words": "this name has a word that docs/glossary.md does not: use the field's term",
        "folders": f"this folder has more than {MODULES} modules: part it, or merge what is one thought",
        "complexity": f"this function has a complexity over {COMPLEXITY}: part it",
        "statements": "this function returns a bool: name it as a statement, with is, has, can, may, must or needs",
        "participles": "a bare participle names this function: use a verb, or a noun for what it computes",
        "vague": "this name says nothing: use the noun of the thing",
    }
    errors = [
        f"{entry}: {fixes[rule]}" for rule, entries in findings.items() for entry in sorted(entries - listed[rule])
    ]
    errors += [
        f"scripts/house.toml: {entry} ({rule}) is mended: remove it from the list, or run this with --write"
        for rule, entries in findings.items()
        for entry in sorted(listed[rule] - entries)
    ]
    for error in errors:
        print(f"Error: {error}", file=sys.stderr)
    return 1 if errors else 0


def print_figures() -> None:
    """Print how many names break a rule."""
    for packages in (PACKAGES, SUPPORT):
        print(f"vague names in {', '.join(packages)}: {vague_names(packages).total()}")
    for rule, entries in functions().items():
        print(f"{rule}: {len(entries)}")


if __name__ == "__main__":
    sys.exit(main())
