"""The list of mutations fits the product as it is, and the runner reports what no test has noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations import runner
from tests.mutations.random_draw import draw, positions, select_tests, try_drawn
from tests.mutations.runner import CAUGHT, INVALID, NOT_CAUGHT, Mutation

ROOT = Path(__file__).parents[2]

PRODUCT = "def limit(size):\n    return size <= 3\n"
TEST = "from halimede.bounds import limit\n\ndef test_limit():\n    assert limit(3)\n    assert not limit(5)\n"


def test_each_text_stands_once_in_the_product_and_each_test_file_is_there() -> None:
    files, wrong = runner.sources(ROOT), []
    for mutation in runner.load():
        assert mutation.text != mutation.replacement
        found = runner.modules_with(mutation.text, files)
        if len(found) != 1:
            wrong.append(f"{mutation.area}, {mutation.effect}: its text stands {len(found)} times in the product")
        unknown = [name for name in mutation.tests if len(runner.test_files(name, ROOT)) != 1]
        if unknown:
            wrong.append(f"{mutation.area}, {mutation.effect}: no test file each: {unknown}")
    assert not wrong, "tests/mutations/mutations.toml has to follow the code:\n" + "\n".join(wrong)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A product of one function, with one test."""
    for path, content in (("halimede/bounds.py", PRODUCT), ("halimede/__init__.py", ""), ("services/__init__.py", "")):
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_text(content)
    (tmp_path / "tree" / "tests").mkdir()
    (tmp_path / "tree" / "tests" / "test_bounds.py").write_text(TEST)
    return tmp_path / "tree"


def mutation(replacement: str, *, text: str = "size <= 3", tests: tuple[str, ...] = ("test_bounds",)) -> Mutation:
    return Mutation("bounds", f"it is {replacement}", text, replacement, tests)


def test_a_mutation_that_no_test_notices_is_reported_as_such(tree: Path, tmp_path: Path) -> None:
    tried = [mutation("size < 3"), mutation("size <= 4"), mutation("size <"), mutation("True", text="nowhere")]
    results = runner.try_all([*tried, mutation("True", tests=("test_gone",))], tree, tmp_path)
    assert [result.outcome for result in results] == [CAUGHT, NOT_CAUGHT, INVALID, INVALID, INVALID]
    assert (tree / "halimede" / "bounds.py").read_text() == PRODUCT
    assert (tmp_path / "copy0" / "halimede" / "bounds.py").read_text() == PRODUCT
    assert "5 mutations, 1 caught, 4 not" in runner.table(results)


MODULE = '''"""A module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

Size = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Bound:
    size: Annotated[int, Meta(ge=1)] = 3


def limit(size: int | None) -> bool | None:
    return size <= 3 and size is not None
'''


def test_what_is_drawn_is_one_token_of_code_and_the_same_for_a_seed(tree: Path) -> None:
    module = tree / "halimede" / "bounds.py"
    module.write_text(MODULE)
    tokens = {MODULE.splitlines()[at[0] - 1][at[1] :].split()[0] for at in (p.at for p in positions(module, MODULE))}
    assert tokens == {"<=", "3", "and", "is"}
    first, again, other = (
        [mutation.effect for _, _, mutation in draw(tree, ["halimede"], 5, seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first[:3] == [mutation.effect for _, _, mutation in draw(tree, ["halimede"], 3, 1)]
    for _, content, mutation in draw(tree, ["halimede/bounds"], 50, 1):
        pairs = zip(MODULE.splitlines(), content.splitlines(), strict=True)
        assert [new.strip() for old, new in pairs if new != old] == [mutation.replacement]


def test_a_drawn_mutation_is_tried_against_the_tests_that_import_its_module(tree: Path) -> None:
    (tree / "tests" / "unit" / "halimede").mkdir(parents=True)
    (tree / "tests" / "test_bounds.py").rename(tree / "tests" / "unit" / "test_bounds.py")
    (tree / "tests" / "unit" / "test_other.py").write_text("from halimede import bound\n")
    module = Path("halimede/bounds.py")
    assert select_tests(module, tree) == [tree / "tests" / "unit" / "test_bounds.py"]
    outcomes = {}
    for _, content, mutation in draw(tree, ["halimede"], 50, 4):
        outcomes[mutation.replacement] = try_drawn(module, content, mutation, tree).outcome
    assert outcomes
    caught = {"return size < 3", "return size > 3", "return size == 4", "return size <= 2"}
    assert all(outcomes[text] == CAUGHT for text in outcomes.keys() & caught)
    assert outcomes.get("return size <= 4", NOT_CAUGHT) == NOT_CAUGHT
    assert (tree / module).read_text() == PRODUCT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replacement", "test", "code"), [("size < 3", TEST, 0), ("size <= 4", TEST, 1), ("0", "1/0", 2)]
)
def test_the_exit_code_is_the_outcome(replacement: str, test: str, code: int, tree: Path, tmp_path: Path) -> None:
    (tree / "tests" / "test_bounds.py").write_text(test)
    entry = f'area = "bounds"\neffect = "other"\ntext = "size <= 3"\nreplacement = "{replacement}"'
    (tmp_path / "list.toml").write_text(f'[[mutation]]\n{entry}\ntests = ["test_bounds"]\n')
    command = [sys.executable, "-m", "tests.mutations", "--root", str(tree), "--list", str(tmp_path / "list.toml")]
    ended = subprocess.run([*command, "--jobs", "1"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    if code == 1:
        assert "NOT CAUGHT" in ended.stdout
