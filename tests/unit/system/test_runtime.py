"""Garbage collections that leave what they have seen alone, and lose nothing for good; freed memory that is kept."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

from halimede.system.runtime import EVERYTHING_EVERY, brief_collections, rare_collections
from tests.programs import run_python

ROOT = Path(__file__).parents[3]
#: prints the page faults of ten frames, which need arrays of three sizes
FRAMES = """
import resource, sys
from halimede.system.runtime import keep_freed_memory
def frames(count):
    for _ in range(count):
        arrays = [b"x" * (size << 20) for size in (6, 8, 5)]
        del arrays
if sys.argv[1:]:
    keep_freed_memory()
frames(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
frames(10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*arguments: str, **variables: str) -> int:
    """Return the page faults of frames in a process of its own."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    return int(run_python("-c", FRAMES, *arguments, check=True, env=environment).stdout)


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


def test_memory_that_a_frame_has_freed_is_used_by_the_next_one_unless_the_environment_says_otherwise() -> None:
    before = page_faults()
    assert page_faults("kept") < before / 10
    assert page_faults("kept", MALLOC_TRIM_THRESHOLD_="131072") > before / 2
