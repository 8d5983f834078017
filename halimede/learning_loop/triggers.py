"""The triggers of a round: a command, drift, enough new samples, or a schedule.

After a refused candidate the next round waits: for twice as long as after the refusal before, and for new samples. The
same samples would only make the same candidate again. A command starts a round at once. Pure.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from halimede.api.learning_loop import TriggerSettings

#: why a round began
COMMAND, DRIFT, SAMPLES, SCHEDULE = "Command", "Drift", "EnoughSamples", "Schedule"
#: refusals after which the pause grows no more
MOST_DOUBLINGS = 6

Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class TriggerFacts(Struct, kw_only=True, frozen=True):
    """What triggers depend on.

    Attributes:
        drifting: at least one worker reports drift.
        labelled: new labelled samples since the last training began.
        trained: labelled samples of the present stream that the last training had.
        refusals: rounds in a row that ended without a roll-out.
        since_s: seconds since the last round ended, or since the loop began.
        command: number of the last command; ``served``: of the last command that a round began for.

    """

    drifting: bool = False
    labelled: Number = 0
    trained: Number = 0
    refusals: Number = 0
    since_s: Seconds = 0.0
    command: Number = 0
    served: Number = 0


def due(facts: TriggerFacts, settings: TriggerSettings) -> str:
    """Return why a round begins now; empty: it does not."""
    if facts.command > facts.served:
        return COMMAND
    if facts.since_s < pause(facts.refusals, settings) or not facts.labelled:
        return ""
    if facts.refusals and facts.labelled < settings.new_share * facts.trained:
        return ""
    if settings.drift and facts.drifting:
        return DRIFT
    if settings.samples and facts.labelled >= settings.samples:
        return SAMPLES
    if settings.every_s and facts.since_s >= settings.every_s:
        return SCHEDULE
    return ""


def pause(refusals: int, settings: TriggerSettings) -> float:
    """Return the least seconds between two rounds after this many refusals in a row."""
    return float(settings.pause_s * 2 ** min(refusals, MOST_DOUBLINGS))
