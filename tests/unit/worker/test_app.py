"""The command line says what the worker reads, and refuses what it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from halimede.worker.settings import read
from services.worker.app import main, parser
from tests.unit.worker.test_settings import EDGE


class Noted(Mapping[str, str]):
    """An environment that notes what is asked of it."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return EDGE[name]

    def __iter__(self) -> Iterator[str]:
        return iter(EDGE)

    def __len__(self) -> int:
        return len(EDGE)


def test_the_help_names_every_variable_that_is_read() -> None:
    noted = Noted()
    read("edge", noted)
    named = set(re.findall(r"\b[A-Z][A-Z_0-9]+\b", parser().format_help()))
    assert noted.names - named <= {"DATA_PATH_PREFIX", "HALIMEDE_HOME"}


@pytest.mark.parametrize("arguments", [[], ["gm"], ["edge", "more"]])
def test_anything_but_a_role_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
