"""Hard example mining as Sedna's scripts use it: classes that are called with what the small model answered."""

from halimede.compat.sedna.algorithms.hard_example_mining.hard_example_mining import (
    BaseFilter,
    BertRouterFilter,
    CloudOnlyFilter,
    CrossEntropyFilter,
    EdgeOnlyFilter,
    IBTFilter,
    RandomFilter,
    ThresholdFilter,
)

__all__ = (
    "BaseFilter",
    "BertRouterFilter",
    "CloudOnlyFilter",
    "CrossEntropyFilter",
    "EdgeOnlyFilter",
    "IBTFilter",
    "RandomFilter",
    "ThresholdFilter",
)
