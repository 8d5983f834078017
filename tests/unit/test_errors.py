"""Errors say what to do, and reach the user whole."""

from __future__ import annotations

import asyncio

import pytest

from halimede.errors import HalimedeError, InvalidFieldError, first_error


async def fail(error: Exception) -> None:
    raise error


async def together(*errors: Exception) -> None:
    """Fail with each of these at once, deep inside."""
    with first_error():
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as group:
            outer.create_task(asyncio.sleep(3600))
            for error in errors:
                group.create_task(fail(error))


async def test_a_task_groups_error_reaches_the_user_by_itself() -> None:
    with pytest.raises(HalimedeError, match="this one"):
        await together(HalimedeError("this one"))


async def test_a_defect_beside_it_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup):
        await together(HalimedeError("a mistake"), ZeroDivisionError())


def test_a_value_is_shown_by_its_beginning_however_large_or_strange() -> None:
    itself: list[object] = []
    itself.append(itself)
    for value in ("x" * 100_000, itself, {"a": {"b": {"c": ["d"] * 1000}}}):
        assert len(str(InvalidFieldError("spec.x", value, "do this"))) < 300


@pytest.mark.parametrize("field", ["a\nb", "\x1b[31mred", "x" * 5000, "\ud800"])
def test_a_made_up_field_is_shown_in_one_plain_line(field: str) -> None:
    error = InvalidFieldError(f"spec.{field}", None, "remove it")
    assert error.field == f"spec.{field}"
    assert str(error).isprintable()
    assert len(str(error)) < 300
