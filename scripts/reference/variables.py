"""The page of all environment variables, from the calls that read them and the meanings in ``variables.toml``."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scripts.reference.markdown import IncompleteError, code, document, prose, table
from scripts.reference.source import assigned, calls, text_of, trees

FILE = Path(__file__).with_name("variables.toml")
#: the functions that read a variable: the position of its name, and of a default
READERS = {
    "number": (1, 2), "flag": (1, None), "one_of": (1, None), "required": (1, None), "read_json": (1, None),
    "_switch": (1, None), "get": (0, None), "getenv": (0, None),
}  # fmt: skip
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
#: variables of the operating system and of Python
FOREIGN = frozenset({"PATH", "PYTHONPATH", "HOME", "PWD", "LD_LIBRARY_PATH", "NOTIFY_SOCKET"})
ABOUT = """\
Who reads a variable is in the heading. A variable that is not set has its default. A value that is not accepted ends \
the process with an error that names the variable, the value and what to write."""


def pages() -> dict[str, str]:
    """Return the page."""
    sections = tomllib.loads(FILE.read_text())
    known = {name for section in sections.values() for names in section["variables"] for name in _split(names)}
    read = dict(_read())
    if missing := sorted(read.keys() - known):
        raise IncompleteError(f"{FILE.name}: describe {', '.join(missing)}, which the code reads")
    anywhere = _constants()
    if stale := sorted(name for name in known - read.keys() if name not in anywhere and not name.startswith("OTEL_")):
        raise IncompleteError(f"{FILE.name}: remove {', '.join(stale)}: the code has no such variable")
    parts = []
    for section in sections.values():
        rows = [
            [", ".join(map(code, _split(names))), "; ".join(_shown(_split(names), read)),
             text if "`" in text or "](" in text else prose(text)]
            for names, text in section["variables"].items()
        ]  # fmt: skip
        parts += [f"## {section['title']}", section.get("about", ""), table(["variable", "limits", "meaning"], rows)]
        parts.append(section.get("after", ""))
    return {"environment": document("Environment variables", "the calls that read them", ABOUT, *parts)}


def _shown(names: list[str], read: dict[str, str]) -> Iterator[str]:
    """Yield the limits of variables; of one among several with its name."""
    for name in names:
        if limits := read.get(name):
            yield limits if len(names) == 1 else f"{code(name)}: {limits}"


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _read() -> Iterator[tuple[str, str]]:
    """Yield each variable that is read, with the limits of its value; one with limits comes last."""
    found: dict[str, str] = {}
    for tree in trees().values():
        names = assigned(tree)
        for name, limits in (*_subscripts(tree, names), *_calls(tree, names)):
            if VARIABLE.fullmatch(name) and name not in FOREIGN:
                found[name] = limits or found.get(name, "")
    yield from found.items()


def _subscripts(tree: ast.Module, names: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_environment(node.value) and (name := text_of(node.slice, names)):
            yield name, ""


def _calls(tree: ast.Module, names: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    for function, call in calls(tree):
        if function not in READERS:
            continue
        at, default = READERS[function]
        if function == "get" and not (isinstance(call.func, ast.Attribute) and _is_environment(call.func.value)):
            continue
        if len(call.args) > at and (name := text_of(call.args[at], names)):
            yield name, _limits(call, names) if default else ""


def _limits(call: ast.Call, names: dict[str, ast.expr]) -> str:
    """Return the limits and the default of a number, if they are constants."""
    values = {word.arg: _number(word.value, names) for word in call.keywords}
    values["default"] = _number(call.args[2], names) if len(call.args) > 2 else None
    least, most, default = (values.get(word) for word in ("least", "most", "default"))
    shown = f"{least} to {most}" if least is not None and most is not None else ""
    return "; ".join(filter(None, [shown, f"default {default}" if default is not None and default != "0" else ""]))


def _number(node: ast.expr, names: dict[str, ast.expr]) -> str | None:
    if isinstance(node, ast.Name):
        node = names.get(node.id, node)
    return ast.unparse(node).replace("_", "") if isinstance(node, ast.Constant) else None


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2] in {"environ", "environment"}


def _constants() -> set[str]:
    """Return all string constants that look like a variable: those that are written, or read through a table."""
    return {
        name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"[A-Z][A-Z0-9_]+", node.value)
    }
