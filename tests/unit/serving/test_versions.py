"""Which version answers: decided without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from halimede.serving.errors import NotFoundError, UnavailableError
from halimede.serving.versions import STRIKES, Served, Version
from tests.serving_world import wish

LOADED = cast("Any", object())


def version(name: str, percent: int = 100, digest: str = "") -> Version:
    return Version(wish(Path(f"/{name}"), version=name, percent=percent, digest=digest or name), digest or name, LOADED)


def test_the_first_version_is_opened_and_the_same_again_changes_nothing() -> None:
    served = Served("m")
    one = version("1")
    assert served.step(one.wish) == "load"
    served.current = one
    assert served.step(one.wish) == "withdraw"  # of what there is: nothing
    assert served.step(version("2").wish) == "load"


def test_a_canary_is_given_more_then_all_or_withdrawn() -> None:
    served = Served("m", current=version("1"), canary=version("2", 10), percent=10)
    assert served.step(version("2", 50).wish) == "share"
    assert served.step(version("2", 100).wish) == "promote"
    assert served.step(version("1").wish) == "withdraw"
    assert served.step(version("3", 10).wish) == "load"


def test_what_was_refused_is_not_tried_again_until_something_else_is_wished_for() -> None:
    served = Served("m", current=version("1"))
    served.refuse(version("2").wish, "2", "ModelInvalid", "it is no model")
    assert served.step(version("2").wish) == "keep"
    assert served.step(version("3").wish) == "load"
    said = served.in_use()
    assert (said.version, said.refused, said.reason, said.message) == ("1", "2", "ModelInvalid", "it is no model")
    served.forgive()
    assert served.in_use().reason == ""


@pytest.mark.parametrize("percent", [0, 1, 10, 33, 50, 99])
def test_a_canary_gets_exactly_its_percentage(percent: int) -> None:
    served = Served("m", current=version("1"), canary=version("2"), percent=percent)
    chosen = [served.choose() for _ in range(1000)]
    assert sum(one is served.canary for one in chosen) == percent * 10
    if percent == 50:
        assert [one is served.canary for one in chosen[:4]] == [False, True, False, True]


def test_who_names_a_version_gets_it_or_hears_which_there_are() -> None:
    served = Served("m", current=version("1"), canary=version("2"), percent=0)
    assert served.choose("2") is served.canary
    assert served.choose("1") is served.current
    with pytest.raises(NotFoundError, match="it has 1, 2"):
        served.choose("3")


def test_nothing_to_answer_with_is_no_answer_yet_and_says_why() -> None:
    served = Served("m")
    with pytest.raises(UnavailableError, match="not ready yet"):
        served.choose()
    served.refuse(version("1").wish, "1", "ModelInvalid", "it is no model")
    with pytest.raises(UnavailableError, match="ModelInvalid: it is no model"):
        served.choose()


def test_a_canary_is_withdrawn_after_some_strikes() -> None:
    served = Served("m")
    assert [served.struck() for _ in range(STRIKES)] == [False] * (STRIKES - 1) + [True]
