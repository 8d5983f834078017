"""bench.hops on a slow machine: it states what was not as meant, and counts the frames that were."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.hops_calls import Cost
from bench.hops_frames import differences

BY_EDGE: dict[str, Any] = {"by": "edge", "degraded": False}


def cost(*, inline: int = 0, threaded: int = 0) -> Cost:
    return Cost(Counter(), 0.1, inline, threaded)


def test_frames_as_meant_are_no_news() -> None:
    assert not list(differences([(cost(inline=1), BY_EDGE)], "easy", slow=False))
    assert not list(differences([(cost(threaded=1), BY_EDGE)], "easy", slow=True))


def test_models_that_ran_in_another_place_and_other_answers_are_stated() -> None:
    late = {"by": "edge", "degraded": True}
    windows = [(cost(threaded=1), BY_EDGE), (cost(inline=1), BY_EDGE), (cost(inline=1), late)]
    answered, ran = differences(windows, "easy", slow=False)
    assert answered == f"1 of 3 easy frames were answered so, and do not count: {late}"
    assert ran == "of 1 of 2 easy frames with the fast model, models ran in their threads, not on the event loop"
