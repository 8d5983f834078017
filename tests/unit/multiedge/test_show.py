from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from halimede.errors import InvalidFieldError
from halimede.multiedge import Parameters, application, create
from halimede.multiedge.show import graph
from tests.programs import run_python

ROOT = Path(__file__).parents[3]


def shown(name: str, **parameters: str) -> str:
    given = Parameters(parameters)
    return graph(name, create(name, "", given), given)


def test_a_graph_is_one_line_and_what_each_part_does():
    first, *rest = shown("reid", detect="motion").splitlines()
    assert first == "reid: source -> motion -> crop -> embed -> size => matcher -> sink"
    assert any(line.split()[:5] == ["crop", "Make", "a", "crop", "of"] for line in rest)
    assert any("findings that are worth it" in line for line in rest)


def test_parameters_change_the_graph():
    assert "source -> detect -> crop" in shown("reid")
    balance, sooner = shown("balance"), "a peer that would be done sooner"
    assert sooner in balance
    assert sooner not in shown("balance", share="false")
    assert "=>" not in balance


def test_parameters_that_a_stage_refuses_are_named():
    with pytest.raises(InvalidFieldError, match=r"spec\.application\.parameters\.margin"):
        shown("reid", margin="x")


def test_an_installed_application_that_cannot_be_loaded_is_named_with_the_cause(monkeypatch):
    broken = EntryPoint("broken", "no_such_module:maker", application.GROUP)
    monkeypatch.setattr(application, "entry_points", lambda *, group: [broken])
    with pytest.raises(InvalidFieldError, match=r"'broken' is not accepted: .*No module named 'no_such_module'"):
        create("broken", "", Parameters({}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nobody"], 1, "spec.application.name: 'nobody' is not accepted: use one of balance, fusion, reid"),
        (["reid", "-p", "detect"], 1, "write KEY=VALUE"),
        ([], 2, "give the name of an application, or --entry"),
    ],
)
def test_the_program_says_what_is_wrong_without_a_traceback(arguments, status, text):
    ended = run_python("-m", "halimede.multiedge.show", *arguments, cwd=ROOT)
    assert ended.returncode == status
    assert text in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
