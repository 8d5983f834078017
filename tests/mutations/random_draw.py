"""``python -m tests.mutations.random_draw``: draws one-token mutations at random, and tries each against its tests.

cosmic-ray knows the mutations: another comparison or operator, ``and`` for ``or``, a number that is one more or less,
``True`` for ``False``, ``break`` for ``continue``, a ``not``. A seed decides which are drawn, so that the draw can be
made again (``--list`` shows it alone). The tests of a mutation are the tests that import its module, also through a
module of the tests, then the unit tests of its package, and those of ``INDIRECT``. Types, decorators and the options of
classes are left out.

Exit codes: 0, all were caught; 1, some were not.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

from tests.mutations import runner
from tests.mutations.runner import Mutation, MutationResult

ROOT = Path(__file__).parents[2]
#: mutations of one token, without those that change nothing: ``is`` for ``==`` of small values
OPERATORS = re.compile(
    r"(?!.*_(Eq|NotEq)_Is|.*_Is(Not)?_(Eq|NotEq)$)"
    r"(ReplaceBinary|ReplaceComparison|ReplaceUnary|ReplaceTrue|ReplaceFalse|ReplaceAnd|ReplaceOr|ReplaceBreak"
    r"|ReplaceContinue|AddNot|NumberReplacer)"
)
#: tests, or folders of tests, that show what a package does and import few of its modules
INDIRECT = {
    "halimede/bus": ("contract", "unit/pipeline/test_result_outbox.py"),
    "halimede/pipeline": (
        "blackbox",
        "unit/worker",
        "unit/joint_model",
        "unit/multiedge/test_members.py",
        "integration/test_worker_over_mosquitto.py",
    ),
    "halimede/sample_files": ("unit/datasets", "unit/hard_samples/test_export.py"),
    "halimede/training": ("integration/test_training_workers.py",),
    "services/gm": ("integration/test_gm_on_memory_bus.py", "integration/test_gm_occupancy_topics.py"),
    "services/lc": ("integration/test_lc_processes.py",),
}
#: all tests together have taken too long: nobody knows (a test that hangs alone has failed, by its own limit)
TIME_OVER = "TIME OVER"
TYPES = frozenset({"Annotated", "Callable", "Literal", "dict", "list", "tuple", "set"})
#: folders of tests, the quickest first
TESTS = ("unit", "contract", "integration")
#: seconds for all tests of a mutation
DRAWN_S = 900

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Position:
    """A token of the product, and the mutations of it: the names of operators, each with the number of its place."""

    path: Path
    at: Place
    mutations: tuple[tuple[str, int], ...]


def modules(root: Path, packages: Sequence[str]) -> list[Path]:
    """Return the modules of packages, which are paths such as ``halimede/training`` or ``services/gm/downstream``."""
    files = [
        file
        for package in packages
        for file in (sorted((root / package).rglob("*.py")) if (root / package).is_dir() else [root / f"{package}.py"])
    ]
    absent = [file for file in files if not file.is_file()]
    if absent or not files:
        raise SystemExit(f"Error: there is no package {absent[0] if absent else list(packages)}")
    return files


def positions(path: Path, source: str) -> list[Position]:
    """Return the tokens of a module that can be mutated, in their order."""
    tree, unused = get_ast(source), list(_declarations(ast.parse(source)))
    places: dict[Place, list[tuple[str, int]]] = {}
    provider = OperatorProvider()
    for name in filter(OPERATORS.match, provider):
        operator, number = provider[name](), -1
        for node in ast_nodes(tree):
            for begin, _ in operator.mutation_positions(node):
                number += 1
                if not any(first <= begin < last for first, last in unused):
                    places.setdefault(begin, []).append((name, number))
    return [Position(path, at, tuple(mutations)) for at, mutations in sorted(places.items())]


def _declarations(tree: ast.AST) -> Iterator[tuple[Place, Place]]:
    """Yield where annotations, types, decorators and the options of classes begin and end."""
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", ())
        if isinstance(node, ast.ClassDef):
            parts += [keyword.value for keyword in node.keywords]
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in TYPES:
            parts.append(node)
        for part in parts:
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def draw(root: Path, packages: Sequence[str], count: int, seed: int) -> Iterator[tuple[Path, str, Mutation]]:
    """Yield drawn mutations: the module, its mutated source, and what was changed. Each token is as probable.

    More of the same seed begin with the same ones, so that one can be replaced by the next.
    """
    found = [place for path in modules(root, packages) for place in positions(path, path.read_text())]
    Random(seed).shuffle(found)
    drawn = 0
    for place in found:
        if drawn == count:
            return
        name, number = Random(f"{seed} {place.path.name} {place.at}").choice(place.mutations)
        source = place.path.read_text()
        content = mutate_code(source, OperatorProvider()[name](), number)
        if not _is_python(content):  # such as % for the ** of keyword arguments
            continue
        drawn += 1
        line = place.at[0] - 1
        before, after = source.splitlines()[line].strip(), content.splitlines()[line].strip()
        module = place.path.relative_to(root)
        tests = tuple(str(file.relative_to(root)) for file in select_tests(module, root))
        yield module, content, Mutation(f"{module}:{line + 1}", f"{before}  ->  {after}", before, after, tests)


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def select_tests(module: Path, root: Path) -> list[Path]:
    """Return the tests of a module: in each folder those that import it come before the others of its package."""
    sources = {file: file.read_text() for file in sorted((root / "tests").rglob("*.py"))}
    changed, users = [module], set[Path]()
    while changed:
        name = changed.pop().with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        parent, _, stem = name.rpartition(".")
        imports = re.compile(
            rf"^ *(?:from {re.escape(name)} import|import {re.escape(name)}\b"
            rf"|from {re.escape(parent)} import (?:\([^)]*|.*)\b{stem}\b)",
            re.MULTILINE,
        )
        direct = {file for file, source in sources.items() if file not in users and imports.search(source)}
        changed += [file.relative_to(root) for file in direct if not file.name.startswith("test_")]
        users |= direct
    package = module.parts[1].removesuffix(".py")
    paths = [f"unit/{package}", *(name for top in INDIRECT if module.is_relative_to(top) for name in INDIRECT[top])]
    indirect = {
        file
        for path in paths
        for file in [root / "tests" / path, *(root / "tests" / path).rglob("*.py")]
        if file.is_file()
    }
    ordered = [*sorted(users), *sorted(indirect - users)]
    tests = [file for file in ordered if file.name.startswith("test_")]
    return [file for folder in TESTS for file in tests if root / "tests" / folder in file.parents]


def try_drawn(module: Path, content: str, mutation: Mutation, root: Path) -> MutationResult:
    """Apply a drawn mutation in the copy at ``root``, and run its tests: one must fail."""
    if not mutation.tests:
        return MutationResult(mutation, str(module), runner.NOT_CAUGHT, "no test imports the module")
    with runner.changed(root / module, content):
        code, output = runner.run_pytest(root, [root / file for file in mutation.tests], DRAWN_S)
    outcomes = {runner.PASSED: runner.NOT_CAUGHT, None: TIME_OVER}
    return MutationResult(mutation, str(module), outcomes.get(code, runner.CAUGHT), output)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.random_draw", description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=["halimede/learning_loop"], help="halimede/training, ...")
    parser.add_argument("--seed", type=lambda text: int(text, 16), default=0, help="hexadecimal digits (0)")
    parser.add_argument("--count", type=int, default=20, help="mutations to draw (20)")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (2)")
    parser.add_argument("--list", action="store_true", help="show the draw, and try nothing")
    options = parser.parse_args()
    drawn = list(draw(ROOT, options.packages, options.count, options.seed))
    if options.list:
        for number, (_, _, mutation) in enumerate(drawn, start=1):
            print(f"{number:3}  {mutation.area}  {mutation.effect}")
        return 0
    attempts = [partial(try_drawn, *item) for item in drawn]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        results = runner.in_copies(attempts, ROOT, Path(folder), jobs=options.jobs, done=_report)
    print(f"\n{runner.table(results)}")
    return 0 if all(result.outcome == runner.CAUGHT for result in results) else 1


def _report(result: MutationResult) -> None:
    print(f"{result.outcome:<10}  {result.mutation.area}  {result.mutation.effect}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
