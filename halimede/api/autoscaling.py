"""The autoscaling of a worker, as Sedna writes it: GM makes a HorizontalPodAutoscaler of it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from halimede.api.base import Spec, convert
from halimede.api.schema import ValidationRule
from halimede.errors import InvalidFieldError

Replicas = Annotated[int, Meta(ge=1, le=10_000)]


class Autoscaler(Spec, kw_only=True):
    """How many pods of a worker there may be, and what makes them more or fewer. Kubernetes only."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "must not be more than maxReplicas",
            ".minReplicas",
        ),
    )

    min_replicas: Annotated[Replicas, Meta(description="The least number of pods.")] = 1
    max_replicas: Annotated[Replicas, Meta(description="The greatest number of pods.")]
    metrics: Annotated[
        list[dict[str, Any]],
        Meta(max_length=16, description="What is measured and its target: MetricSpecs of autoscaling/v2."),
    ] = []
    behavior: Annotated[
        dict[str, Any], Meta(description="How fast it scales: HorizontalPodAutoscalerBehavior of autoscaling/v2.")
    ] = {}


def check_autoscaler(value: object, path: str) -> None:
    """Check a worker's ``hpa``, which stays as the user wrote it. Raises InvalidFieldError."""
    hpa = convert(value, Autoscaler, path)
    if hpa.min_replicas > hpa.max_replicas:
        raise InvalidFieldError(f"{path}.minReplicas", hpa.min_replicas, "must not be more than maxReplicas")
