"""Hard example mining for Sedna's scripts: classes that are called with the small model's answer."""

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
