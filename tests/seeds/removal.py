"""Removes one field of a message or resource type, and finds the first fact that does not hold then.

    python -m tests.seeds.removal MODULE:CLASS:FIELD ...

imports the product without that field, as if nobody had written it, and checks the facts of one machine. It prints the
first that does not hold, and ends with 0 if each field has one, else with 1. Without arguments it does so with every
field that a fact is about, as ``make mutations`` does; ``--list`` prints them.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_args

import msgspec

from tests.seeds.facts import MANIFESTS, facts, holds, parts
from tests.waiting import patience

#: what the product needs, imported once for all fields
PACKAGES = ("aiohttp", "msgspec", "numpy", "prometheus_client", "pytest", "ruamel.yaml", "structlog")
#: seconds for the facts of one machine
FACTS_S = 60.0
#: documents that are a worker's report, a node's report, or a resource with its status
INFO = {"info", "last-info", "failed-info"}
REPORTS = {"report", "first-report", "several-report"}
STATUSES = {"status", "unmet", "edge-only", "failed", "no-node", "selection"}


@dataclass(frozen=True, order=True)
class FieldOf:
    """A field where it is written."""

    module: str
    owner: str
    name: str

    def __str__(self) -> str:
        """Return it as the command line has it."""
        return f"{self.module}:{self.owner}:{self.name}"


def fields() -> list[FieldOf]:
    """Return each field of the product's types that a fact of one machine is about."""
    from halimede.api import kinds
    from halimede.messages import NodeStatus, Status, StatusDocument, WorkerInfo

    specs = {f"{kind.api_version.partition('/')[0]}_{kind.plural}": kind.spec for kind in kinds()}
    found: set[FieldOf] = set()
    for fact in facts("machine"):
        document, path = fact["document"], [part for part in parts(fact["path"]) if isinstance(part, str)]
        path = [part for part in path if part != "[]"]
        if document in MANIFESTS:
            root = {"spec": specs[MANIFESTS[document]], "status": Status}.get(path.pop(0)) if "schema" in fact else None
        elif document in INFO | REPORTS:
            root = WorkerInfo if document in INFO else NodeStatus
        elif document in STATUSES or document.endswith(("-status", "-unmet", "-no-node")):
            root = StatusDocument
        else:
            root = None
        found.update(_steps(root, path))
    return sorted(found)


def _steps(kind: Any, path: Sequence[str]) -> Iterator[FieldOf]:
    """Yield the fields through which a path goes, from a type on."""
    for part in path:
        steps = [(struct, field) for struct in _structs(kind) for field in msgspec.structs.fields(struct)]
        found = next(((struct, field) for struct, field in steps if field.encode_name == part), None)
        if found is None:
            return
        struct, field = found
        owner = next(base for base in struct.__mro__ if field.name in inspect.get_annotations(base))
        yield FieldOf(owner.__module__, owner.__name__, field.name)
        kind = field.type


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the types of objects in an annotation."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs(part)


class _Without(importlib.machinery.SourceFileLoader):
    """Loads a module without a field of one of its classes."""

    def __init__(self, field: FieldOf, path: str) -> None:
        super().__init__(field.module, path)
        self._field = field

    def get_code(self, fullname: str) -> CodeType:  # never from a cache
        tree = ast.parse(Path(self.path).read_bytes())
        owners = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == self._field.owner]
        written = [(owner, line) for owner in owners for line in owner.body if self._is_field(line)]
        if len(written) != 1:
            print(f"Error: {fullname} has no field {self._field}", file=sys.stderr, flush=True)
            os._exit(2)  # no fact has noticed
        owner, line = written[0]
        owner.body.remove(line)
        return compile(tree, self.path, "exec")

    def _is_field(self, line: ast.stmt) -> bool:
        return (
            isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == self._field.name
        )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds that module before anybody else does."""

    def __init__(self, field: FieldOf) -> None:
        self._field = field

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._field.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert found is not None
        assert found.origin
        loader = _Without(self._field, found.origin)
        return importlib.util.spec_from_file_location(
            fullname, found.origin, loader=loader, submodule_search_locations=found.submodule_search_locations
        )


def first_broken() -> str:
    """Return the first fact of one machine that does not hold, or why the product does not run; empty: all hold."""
    left = facts("machine")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            from tests.seeds import machine

            lives = machine.lives(Path(folder))
            while more := next(lives, {}):
                found |= more
                here = [fact for fact in left if fact["document"] in found]
                left = [fact for fact in left if fact["document"] not in found]
                if broken := [fact for fact in here if not holds(fact, found)]:
                    return f"{broken[0]['document']}:{broken[0]['path']}"
        except Exception as error:  # noqa: BLE001 - such as a field that other code needs
            return f"it does not run: {type(error).__name__}: {error}"
    return ""


def without(field: FieldOf) -> int:
    """Check the facts in this process, which has not imported the product yet; return the exit code."""
    sys.meta_path.insert(0, _Finder(field))
    broken = first_broken()
    print(f"{field}: {broken or 'no fact notices'}", flush=True)
    return 0 if broken else 1


def main() -> int:
    """Check the facts without each field of the command line, each in a process of its own."""
    if sys.argv[1:] == ["--list"]:
        print(*fields(), sep="\n")
        return 0
    # this process does not import the product, which each child imports without its field
    command = [sys.executable, "-m", "tests.seeds.removal", "--list"]
    texts = sys.argv[1:] or subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    for package in PACKAGES:
        importlib.import_module(package)
    codes = []
    for text in texts:
        child = os.fork()
        if child == 0:
            signal.alarm(round(patience(FACTS_S)))  # it ends this process: no fact has noticed
            os._exit(without(FieldOf(*text.split(":"))))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
