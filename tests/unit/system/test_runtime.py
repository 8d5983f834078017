"""Garbage collections that leave what they have seen alone, and lose nothing for good."""

from __future__ import annotations

import gc
import weakref

from halimede.system.runtime import EVERYTHING_EVERY, brief_collections, rare_collections


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_has_survived_is_set_aside_until_the_end() -> None:
    before = gc.get_freeze_count()
    with brief_collections():
        kept = [Circle() for _ in range(1000)]
        gc.collect()
        assert gc.get_freeze_count() >= before + len(kept)
    assert gc.get_freeze_count() == 0


def test_young_garbage_is_found_at_once() -> None:
    with brief_collections():
        gone = weakref.ref(Circle())
        gc.collect()
        assert gone() is None


def test_circles_that_survived_and_became_garbage_later_are_found_in_the_end() -> None:
    with brief_collections():
        circle = Circle()
        gone = weakref.ref(circle)
        gc.collect()
        del circle
        for _ in range(EVERYTHING_EVERY - 2):
            gc.collect()
        assert gone() is not None
        gc.collect()
        assert gone() is None


def test_rare_collections_set_aside_what_is_there_and_end_as_they_began() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > frozen
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
