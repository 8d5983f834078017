"""Which version answers: decided without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from halimede.models.rollout import Rollout
from halimede.serving.errors import ModelNotFoundError, ModelUnavailableError
from halimede.serving.loaded_model import ModelVersionState, Served
from tests.serving_world import wish

LOADED = cast("Any", object())


def version(name: str) -> ModelVersionState:
    return ModelVersionState(wish(Path(f"/{name}"), version=name, digest=name), name, name, LOADED)


def served_with_canary(percent: int) -> Served:
    served = Served("m", Rollout(version("1")))
    served.rollout.try_out(version("2"), percent)
    return served


@pytest.mark.parametrize("percent", [0, 1, 10, 33, 50, 99])
def test_a_canary_gets_exactly_its_percentage(percent: int) -> None:
    served = served_with_canary(percent)
    chosen = [served.choose() for _ in range(1000)]
    assert sum(one is served.rollout.canary for one in chosen) == percent * 10
    if percent == 50:
        assert [one is served.rollout.canary for one in chosen[:4]] == [False, True, False, True]


def test_who_names_a_version_gets_it_or_hears_which_there_are() -> None:
    served = served_with_canary(0)
    assert served.choose("2") is served.rollout.canary
    assert served.choose("1") is served.rollout.current
    with pytest.raises(ModelNotFoundError, match="it has 1, 2"):
        served.choose("3")


def test_nothing_to_answer_with_is_no_answer_yet_and_says_why() -> None:
    served = Served("m")
    with pytest.raises(ModelUnavailableError, match="not ready yet"):
        served.choose()
    served.rollout.refuse("ModelInvalid", "it is no model")
    with pytest.raises(ModelUnavailableError, match="ModelInvalid: it is no model"):
        served.choose()
