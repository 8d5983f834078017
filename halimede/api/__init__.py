"""The resources (what users want: documents with ``kind``, ``metadata``, ``spec``), typed, one file for each kind.

Only ``parse`` creates resources: it checks them field by field. ``admit`` checks those that a user writes further. A
new kind is one new file with ``@register``.
"""

from halimede.api import (
    dataset,
    federatedlearning,
    incrementallearning,
    inferencemodel,
    jointinference,
    model,
    multiedge,
    neptune,
    trainingmodel,
)
from halimede.api.base import Kind, Resource, admit, kind_of, kinds, parse, plurals
from halimede.api.placement import matches, placements

__all__ = [
    "Kind",
    "Resource",
    "admit",
    "dataset",
    "federatedlearning",
    "incrementallearning",
    "inferencemodel",
    "jointinference",
    "kind_of",
    "kinds",
    "matches",
    "model",
    "multiedge",
    "neptune",
    "parse",
    "placements",
    "plurals",
    "trainingmodel",
]
