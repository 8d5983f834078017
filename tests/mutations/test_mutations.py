"""The list of mutations fits the product as it is."""

from __future__ import annotations

from pathlib import Path

from tests.mutations import runner

ROOT = Path(__file__).parents[2]


def test_each_text_stands_once_in_the_product_and_each_test_file_is_there() -> None:
    files, wrong = runner.sources(ROOT), []
    for mutation in runner.load():
        assert mutation.text != mutation.replacement
        count = len(runner.modules_with(mutation.text, files))
        if count != 1:
            wrong.append(f"{mutation.area}, {mutation.effect}: its text stands {count} times in the product")
        unknown = [name for name in mutation.tests if len(runner.test_files(name, ROOT)) != 1]
        if unknown:
            wrong.append(f"{mutation.area}, {mutation.effect}: no test file each: {unknown}")
    assert not wrong, "tests/mutations/mutations.toml has to follow the code:\n" + "\n".join(wrong)
