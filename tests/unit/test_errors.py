"""Errors say what to do, and reach the user whole."""

from __future__ import annotations

import asyncio

import pytest

from halimede.errors import HalimedeError, InvalidFieldError, cause_of, describe_exception, first_error, shorten_middle


async def together(*errors: Exception) -> None:
    """Fail with each of these at once, deep inside."""

    async def fail(error: Exception) -> None:
        raise error

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


def test_a_long_text_keeps_its_begin_and_its_end() -> None:
    text = f"Load model from /{'x' * 500} failed: Unsupported model IR version: 13"
    shown = shorten_middle(text, 120)
    assert len(shown) == 120
    assert shown.startswith("Load model from /xx")
    assert shown.endswith("Unsupported model IR version: 13")
    assert shorten_middle(text, len(text)) == text
    assert len(shorten_middle(text)) == 256
    assert [shorten_middle("abcdef", limit) for limit in (1, 2, 3, 5)] == ["…", "a…", "a…f", "ab…ef"]


@pytest.mark.parametrize("before", range(80, 140))
def test_an_address_that_is_cut_shows_no_secret(before: int) -> None:
    """Not even one with a second @ (blakeblackshear/frigate issue 4974), nor one of megabytes."""
    address = "rtsp://hass:Secret!pw@JX@192.168.1.3:554/live?token=Secret"
    for after in (60, 2_000_000):
        shown = shorten_middle(f"{'x' * before} {address} {'y' * after}", 150)
        assert len(shown) == 150
        assert "Secret" not in shown
        assert "pw" not in shown


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (ValueError("first\n  second"), "first second"),
        (TimeoutError(), "it took too long"),
        (ConnectionResetError(), "the connection was lost"),
        (MemoryError(), "there is not enough memory"),
        (StopIteration(), "no cause is reported"),
    ],
)
def test_a_cause_is_in_words(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause


def test_an_exception_of_a_users_code_is_shown_as_python_shows_it() -> None:
    assert describe_exception(KeyError("labels")) == "KeyError: 'labels'"
    assert describe_exception(ValueError()) == "ValueError"
