"""Mutation testing: applies each mutation of a list in a copy of the source tree, and runs the tests that should fail.

A mutation is an exact text of the product, which stands there once, and its replacement. It is found by that text and
not by its module, so that it outlives moves. Nothing is ever changed in place.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parent / "mutations.toml"
#: the packages that are mutated
PRODUCT = ("halimede", "services")
#: what a copy does without
LEFT_OUT = (".venv", ".git", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
#: seconds for one test, for all tests of one mutation, and for those of all: one that hangs was noticed
TEST_S, MUTATION_S, UNCHANGED_S = 60, 300, 1800

CAUGHT, NOT_CAUGHT, INVALID = "caught", "NOT CAUGHT", "INVALID"
#: exit codes of pytest
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Mutation:
    """One defect. ``effect``: what the product does with it; ``tests``: ends of the test files' paths, without .py."""

    area: str
    effect: str
    text: str
    replacement: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class MutationResult:
    """What the tests found of one mutation: CAUGHT, NOT_CAUGHT, or INVALID where they could not even be run."""

    mutation: Mutation
    module: str
    outcome: str
    output: str = ""


def load() -> list[Mutation]:
    entries = tomllib.loads(LIST.read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def sources(root: Path) -> dict[Path, str]:
    """Return the product's source files by path."""
    return {path: path.read_text() for top in PRODUCT for path in sorted((root / top).rglob("*.py"))}


def modules_with(text: str, files: dict[Path, str]) -> list[Path]:
    """Return the files that have a text, each as often as it has it."""
    return [path for path, content in files.items() for _ in range(content.count(text))]


def test_files(name: str, root: Path) -> list[Path]:
    """Return the test files whose paths end so: ``models/test_rollout``."""
    last = name.rpartition("/")[2]
    found = sorted((root / "tests").rglob(f"{last}.py"))
    return [path for path in found if path.with_suffix("").as_posix().endswith("/" + name)]


def copy_tree(root: Path, to: Path) -> Path:
    """Copy what tests need of a source tree; return where it is."""
    shutil.copytree(root, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return to


@contextlib.contextmanager
def changed(path: Path, content: str) -> Iterator[None]:
    """Give a file another content for the length of a block."""
    original = path.read_text()
    try:
        path.write_text(content)
        _forget_bytecode(path)
        yield
    finally:
        path.write_text(original)
        _forget_bytecode(path)


def _forget_bytecode(path: Path) -> None:
    """Python would take it for fresh: it has the same size and second as often as not."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_pytest(root: Path, files: Sequence[Path], limit_s: float = MUTATION_S) -> tuple[int | None, str]:
    """Run test files of a copy; return pytest's exit code, None where it did not end in time, and its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONDONT"))}
    env |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command += [str(path.relative_to(root)) for path in files]
    with subprocess.Popen(
        command,
        cwd=root,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, output


def try_out(mutation: Mutation, root: Path) -> MutationResult:
    """Apply a mutation in the copy at ``root`` and run its tests: all must stand once, and one test must fail."""
    modules = modules_with(mutation.text, sources(root))
    if len(modules) != 1:
        return MutationResult(mutation, "", INVALID, f"its text stands {len(modules)} times in the product")
    (path,) = modules
    module = path.relative_to(root).as_posix()
    files = [found for name in mutation.tests for found in test_files(name, root)]
    if len(files) != len(mutation.tests):
        return MutationResult(mutation, module, INVALID, f"its tests are {len(files)} files: {mutation.tests}")
    with changed(path, path.read_text().replace(mutation.text, mutation.replacement)):
        code, output = run_pytest(root, files)
    if code == PASSED:
        return MutationResult(mutation, module, NOT_CAUGHT, output)
    caught = code in {FAILED, None}
    return MutationResult(mutation, module, CAUGHT if caught else INVALID, output)


def in_copies(
    attempts: Sequence[Callable[[Path], MutationResult]],
    root: Path,
    work: Path,
    *,
    jobs: int,
    done: Callable[[MutationResult], None],
) -> list[MutationResult]:
    """Call each attempt with one of ``jobs`` copies below ``work``; ``done`` is called with each result as it comes."""
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(jobs):
        copies.put(copy_tree(root, work / f"copy{number}"))

    def one(attempt: Callable[[Path], MutationResult]) -> MutationResult:
        copy = copies.get()
        try:
            result = attempt(copy)
        finally:
            copies.put(copy)
        done(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, attempts))


def table(results: Sequence[MutationResult]) -> str:
    """Return the results as lines of text, and how many were caught."""
    rows = [(r.outcome, r.mutation.area, r.mutation.effect, r.module) for r in results]
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    caught = sum(r.outcome == CAUGHT for r in results)
    return "\n".join([*lines, "", f"{len(results)} mutations, {caught} caught, {len(results) - caught} not"])
