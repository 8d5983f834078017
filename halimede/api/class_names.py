"""Warnings about the names that the Models of a service give to classes, by their specs alone.

Without ``spec.labels`` a model answers numbers of classes. Answers of two models of a service are compared by name, so
different names would make each answer wrong. What a script or a user's own code answers is not in a spec, so nothing is
claimed of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import TypeAlias

from halimede.api.jointinference import CloudWorkerSpec, EdgeWorkerSpec, JointInferenceServiceSpec, TierWorker
from halimede.api.model import ModelSpec
from halimede.api.model_formats import format_of
from halimede.api.podtemplate import may_run_own_code
from halimede.api.processing import Postprocess

#: tasks whose answers have classes, and the things that the classes name
CLASSIFIED = {"classification": "classes", "detection": "boxes"}
#: most names of classes in a message
MAX_SHOWN_CLASSES = 5
#: text in place of the names of a Model without labels
NUMBERED_CLASSES = "numbers of classes (it has no spec.labels)"
#: the spec of a worker that answers samples
AnsweringWorker: TypeAlias = EdgeWorkerSpec | TierWorker | CloudWorkerSpec


def unnamed_classes(spec: ModelSpec) -> str:
    """Return the note that a Model answers numbers in place of names of classes; empty if it does not."""
    task = _task(spec)
    if not task or spec.labels:
        return ""
    return (
        f"there are no names of classes, so {CLASSIFIED[task]} are numbered: write spec.labels in the model's order, "
        "the same names in both Models of a service"
    )


def different_names(service: JointInferenceServiceSpec, models: Mapping[str, ModelSpec]) -> str:
    """Return why no answer of one model of a service can equal an answer of the next tier; empty: no reason is known.

    ``models``: specs of Models of the service's namespace by name; a missing Model is not judged.
    """
    for lower, upper in pairwise(_chain(service)):
        low, up = models.get(lower.model.name), models.get(upper.model.name)
        if low is None or up is None or not _is_different(low, up):
            continue
        if not may_run_own_code(lower.template) and not may_run_own_code(upper.template):
            return describe_difference(lower.model.name, low.labels, upper.model.name, up.labels)
    return ""


def model_names(service: JointInferenceServiceSpec) -> set[str]:
    """Return the names of the Models that a service names; a Model that it selects by its fields is not among them."""
    return {worker.model.name for worker in _chain(service)} - {""}


def describe_difference(lower: str, names: Collection[str], upper: str, upper_names: Collection[str]) -> str:
    """Return the note that two models have no name of a class in common. Without names, classes are numbers.

    ``lower``, ``upper``: the names of the models. ``names``, ``upper_names``: those of their classes.
    """
    low, up = (", ".join(sorted(names)[:MAX_SHOWN_CLASSES]) or NUMBERED_CLASSES for names in (names, upper_names))
    return (
        f"{lower} answers {low}, and {upper} {up}: no answer of one counts as right for the other. "
        "If these are the same things, set spec.labels of both Models to the same names"
    )


def _chain(service: JointInferenceServiceSpec) -> tuple[AnsweringWorker, ...]:
    """Return the workers of a service that answer samples: the edge worker, the tiers in order, the cloud worker."""
    return service.edge_worker, *service.tiers, service.cloud_worker


def _task(spec: ModelSpec) -> str:
    """Return the task of a Model whose answers have classes with the names of its spec; empty for other Models."""
    postprocess = spec.postprocess or Postprocess()
    if format_of(spec.format) is None or postprocess.script or postprocess.task not in CLASSIFIED:
        return ""
    return postprocess.task


def _is_different(low: ModelSpec, up: ModelSpec) -> bool:
    """Whether two Models of one task have no name of a class in common. Numbers, without labels, may be names too."""
    if not _task(low) or _task(low) != _task(up):
        return False
    if low.labels and up.labels:
        return set(low.labels).isdisjoint(up.labels)
    return any(not name.isdecimal() for name in (*low.labels, *up.labels))
