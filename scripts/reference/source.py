"""The source of all processes as syntax trees, and the constants in it."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("halimede", "services")


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module by its path."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def assigned(tree: ast.AST, before: int = sys.maxsize) -> dict[str, ast.expr]:
    """Return what each simple name in a tree is set to: the last time before a line."""
    found: dict[str, ast.expr] = {}
    for node in sorted(
        (n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AnnAssign)), key=lambda n: n.lineno
    ):
        if node.lineno >= before:
            break
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False)
                found |= {target.id: value for target, value in pairs if isinstance(target, ast.Name)}
    return found


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in a tree with the last part of the function's name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                yield name, node


def text_of(node: ast.expr | None, names: Mapping[str, ast.expr]) -> str | None:
    """Return the string that an expression is, if it is made of constants and names of constants."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in names:
            return text_of(names[name], {k: v for k, v in names.items() if k != name})
        case ast.JoinedStr(values=values):
            parts = [text_of(v.value if isinstance(v, ast.FormattedValue) else v, names) for v in values]
            return None if None in parts else "".join(filter(None, parts))
    return None
