"""Whatever happens, in any order: left in peace, the system becomes what was asked for, and nothing deleted lives."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import Machine

STEPS = 50


# a falsifying example is made small before it is shown: that takes minutes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("examples", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_whatever_happens_the_system_becomes_what_was_asked_for(examples: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            database=None,
            derandomize=True,  # here the same each time; `make model` goes where nobody has been
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
