"""The settings of a learning loop: ``spec.loop`` of a TrainingModel, for ``halimede.learning_loop``.

A loop trains a new version of a Model again and again: a trigger begins a round, a gate compares the trained candidate
on held-out samples, and as a canary it then answers a share of the stream before it is rolled out.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from halimede.api.base import Spec

#: numbers of settings, by their bounds
Number = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0)]
Limit = Annotated[float, Meta(gt=0)]
Factor = Annotated[float, Meta(ge=0)]
Confidence = Annotated[float, Meta(ge=0.5, lt=1)]


class TriggerSettings(Spec, kw_only=True, frozen=True):  # type: ignore[misc]  # a default of a field must be frozen
    """When a round begins. A command starts one at once."""

    drift: Annotated[
        bool, Meta(description="A round begins if workers report drift. It uses the samples since then.")
    ] = True
    samples: Annotated[
        Number, Meta(description="New labelled samples from which a round begins without drift; 0: never.")
    ] = 0
    every_s: Annotated[
        Seconds, Meta(description="Seconds after which a round begins if there is any new sample; 0: never.")
    ] = 0.0
    pause_s: Annotated[
        Seconds, Meta(description="Least seconds between two rounds; doubled after each refusal in a row.")
    ] = 300.0
    new_share: Annotated[
        Factor,
        Meta(
            description="New labelled samples that a round after a refusal needs, as a share of those of the last"
            " training."
        ),
    ] = 0.5


class GateSettings(Spec, kw_only=True, frozen=True):  # type: ignore[misc]
    """The limits of the gate."""

    confidence: Annotated[
        Confidence, Meta(description="Confidence of the gain's interval, over all attempts together.")
    ] = 0.95
    least: Annotated[Count, Meta(description="Least held-out samples.")] = 100
    least_stratum: Annotated[
        Count,
        Meta(
            description="Least held-out samples that are hard, and that are easy, if a tenth of the stream is. A"
            " smaller stratum may have none: the interval then contains every result in it."
        ),
    ] = 20
    most_forgotten: Annotated[
        Share, Meta(description="Loss on samples of the stream as it was that a candidate must surely stay below.")
    ] = 0.05
    most_group_loss: Annotated[
        Share, Meta(description="Loss in a class that refuses a candidate, if the class is surely worse.")
    ] = 0.05
    most_ms: Annotated[
        Factor, Meta(description="Longest median processor time of an answer in milliseconds; 0: no limit.")
    ] = 0.0
    most_slowdown: Annotated[
        Factor, Meta(description="Largest factor of that time against the present model; 0: no limit.")
    ] = 2.0
    floor_ms: Annotated[
        Factor, Meta(description="A median below this is never too slow against the present model.")
    ] = 1.0


class CanarySettings(Spec, kw_only=True, frozen=True):  # type: ignore[misc]
    """The limits of a canary's trial."""

    percent: Annotated[
        Annotated[int, Meta(ge=1, le=99)], Meta(description="Percentage of the samples that the canary answers.")
    ] = 20
    confidence: Annotated[
        Confidence, Meta(description="Confidence of the intervals, over all comparisons together.")
    ] = 0.95
    least: Annotated[Count, Meta(description="Audits of the canary before the first comparison.")] = 30
    looks: Annotated[
        Annotated[int, Meta(ge=1, le=10)],
        Meta(description="Number of comparisons; a canary that none of them proves is withdrawn."),
    ] = 6
    most_loss: Annotated[
        Share, Meta(description="Loss of agreement that a canary must surely stay below to be rolled out.")
    ] = 0.02
    upload_worth: Annotated[
        Share,
        Meta(
            description="Agreement that one upload for each sample is worth. A version that uploads nearly all samples"
            " agrees with the big model because that answers."
        ),
    ] = 0.1
    most_uploads: Annotated[
        Share, Meta(description="Increase of the upload ratio that a canary must not surely exceed.")
    ] = 0.05

    def due_audits(self, comparison: int) -> int:
        """Return the number of audits of the canary at which a comparison takes place: ``least``, doubled each time.

        ``comparison``: its number, from 0 on.
        """
        return self.least << comparison


class LoopSettings(Spec, kw_only=True, frozen=True):  # type: ignore[misc]
    """The settings of a learning loop."""

    triggers: Annotated[TriggerSettings, Meta(description="When a round begins.")] = field(
        default_factory=TriggerSettings
    )
    gate: Annotated[GateSettings, Meta(description="When a candidate may be tried on the stream.")] = field(
        default_factory=GateSettings
    )
    canary: Annotated[CanarySettings, Meta(description="When a canary is rolled out or withdrawn.")] = field(
        default_factory=CanarySettings
    )
    labelled: Annotated[
        Count,
        Meta(
            description="Labelled samples that a round needs; twice as many after each refusal in a row, up to 8 times."
        ),
    ] = 800
    easy: Annotated[
        Number,
        Meta(
            description="How many of them must be audited easy ones if all samples are easy. With fewer easy samples it"
            " needs proportionally fewer."
        ),
    ] = 500
    least_stratum: Annotated[
        Number,
        Meta(description="Least labelled samples that are hard, and that are easy, if a tenth of the stream is."),
    ] = 100
    audit_share: Annotated[
        Share, Meta(description="Share of the easy samples that is audited while a round runs, so that it ends sooner.")
    ] = 0.2
    after_audits: Annotated[
        Count,
        Meta(description="Audits of the new version until its estimate is recorded and the next round may begin."),
    ] = 100
    labelling_s: Annotated[Limit, Meta(description="Longest time until there are enough labelled samples.")] = 86_400.0
    training_s: Annotated[Limit, Meta(description="Longest time of a training.")] = 3600.0
    judging_s: Annotated[Limit, Meta(description="Longest time until a candidate is compared.")] = 600.0
    canary_s: Annotated[Limit, Meta(description="Longest time of a canary.")] = 86_400.0
    settling_s: Annotated[
        Limit,
        Meta(
            description="Longest time until all workers use the version that was rolled out, or none uses one that was"
            " withdrawn; then the loop goes on without them."
        ),
    ] = 86_400.0
