"""Chooses the Models of a service whose workers have a selector in place of a Model's name. Pure.

A selector gives properties and a metric: the matching Model with the highest value is chosen (``choices``). GM writes
the choice into the service's status before it acts on it, so that a restarted GM continues with it. Nodes recognize an
edit by its generation, and a choice is an edit to them: so the generation in messages to nodes is the user's own plus
the number of changes of choice (``with_chosen_models``). The number is kept for the life of the service, because the
generation must never fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.jointinference import JointInferenceServiceSpec, ModelSelector
from halimede.api.model import ModelSpec, metric_value, task_of
from halimede.messages import ChosenModel, Status

#: roles of workers that may have a selector
ROLES = ("edge", "cloud")


def selectors(service: Resource[Any]) -> dict[str, ModelSelector]:
    """Return the selectors of a joint inference service's workers, by role; none for any other resource."""
    spec = service.spec
    if not isinstance(spec, JointInferenceServiceSpec):
        return {}
    models = {"edge": spec.edge_worker.model, "cloud": spec.cloud_worker.model}
    return {role: model.selector for role, model in models.items() if model.selector}


def with_chosen_models(service: Resource[Any], status: Status | None) -> Resource[Any]:
    """Return the service with the Models that its last status names, and the generation for nodes.

    A worker without a choice keeps its selector.
    """
    chosen = {choice.worker: choice for choice in status.chosen} if status else {}
    if not chosen:
        return service
    spec = dict(service.body["spec"])
    for role in selectors(service):
        if (chosen_model := chosen.get(role)) and chosen_model.model:
            spec[f"{role}Worker"] = {**spec[f"{role}Worker"], "model": {"name": chosen_model.model}}
    generation = service.metadata.generation + sum(choice.changes for choice in chosen.values())
    metadata = {**service.body["metadata"], "generation": generation}
    with_choices = parse({**service.body, "metadata": metadata, "spec": spec})
    # the body may still have the annotation that ``native`` has removed from the metadata: it must stay removed
    return replace(with_choices, metadata=msgspec.structs.replace(service.metadata, generation=generation))


def choices(
    service: Resource[Any], models: Iterable[Resource[ModelSpec]], before: Sequence[ChosenModel]
) -> list[ChosenModel]:
    """Return the choice for each worker with a selector, to be written into the status.

    ``service``: as its user wrote it. ``models``: those of its namespace. ``before``: the choices in the last status:
    of equally good Models, the chosen one stays. The name is empty if no Model matches, and for a worker that had a
    selector earlier: its number of changes must stay.
    """
    previous, selectors_by_role = {choice.worker: choice for choice in before}, selectors(service)
    there = [model for model in models if model.metadata.deletion_timestamp is None]
    choices = []
    for role in ROLES:
        earlier = previous.get(role)
        if role not in selectors_by_role:
            if earlier:
                choices.append(msgspec.structs.replace(earlier, model=""))
            continue
        name = _best(selectors_by_role[role], there, earlier.model if earlier else "")
        changes = earlier.changes + (bool(name) and name != earlier.model) if earlier else 0
        choices.append(ChosenModel(worker=role, model=name, changes=changes))
    return choices


def describe(selector: ModelSelector) -> str:
    """Return a selector as text for messages, such as "task detection and labels night"."""
    parts: list[str] = [f"task {selector.task}"] if selector.task else []
    parts += [f"labels {', '.join(selector.labels)}"] if selector.labels else []
    pairs = (f"{key}={value}" for key, value in sorted(selector.metadata.items()))
    parts += [f"metadata {', '.join(pairs)}"] if selector.metadata else []
    return " and ".join(parts)


def _best(selector: ModelSelector, models: Iterable[Resource[ModelSpec]], present: str) -> str:
    """Return the name of the matching Model with the highest metric; empty: none matches.

    Of equal ones the Model ``present`` is returned, else the first by name.
    """
    ranked: Iterator[tuple[float, bool, str]] = (
        (-_measure(model, selector), model.metadata.name != present, model.metadata.name)
        for model in models
        if _matches(selector, model.spec)
    )
    return min(ranked, default=(0.0, False, ""))[2]


def _matches(selector: ModelSelector, spec: ModelSpec) -> bool:
    """Whether a Model has the task, the labels and the metadata of a selector."""
    return (
        (not selector.task or selector.task == task_of(spec))
        and set(selector.labels) <= set(spec.labels)
        and selector.metadata.items() <= spec.metadata.items()
    )


def _measure(model: Resource[ModelSpec], selector: ModelSelector) -> float:
    """Return a Model's value of the selector's metric; minus infinity if it has none."""
    value = metric_value(model.spec, selector.metric)
    return float("-inf") if value is None else value
