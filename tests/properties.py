"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings

#: examples of a property without a count of its own, in all tests and in the quick ones
ALL, QUICK = 40, 12


def examples(count: int) -> settings:
    """Return the settings of a property that needs ``count`` examples; in ``make test`` it has its share of them."""
    return settings(max_examples=max(1, count * settings().max_examples // ALL))
