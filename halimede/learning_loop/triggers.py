"""Decides whether a round of the learning loop begins: by a command, drift, enough new samples, or a schedule.

After a refused candidate the next round waits twice as long as after the refusal before. It also waits for new samples,
since the same samples would make the same candidate. A command starts a round at once. Pure.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from halimede.api.learning_loop import TriggerSettings

#: the triggers, as a round's reason has them
COMMAND, DRIFT, SAMPLES, SCHEDULE = "Command", "Drift", "EnoughSamples", "Schedule"
#: refusals after which the pause grows no more
MOST_DOUBLINGS = 6

#: a count; a duration
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class TriggerFacts(Struct, kw_only=True, frozen=True):
    """What triggers depend on.

    Attributes:
        drifting: at least one worker reports that its samples differ from those of its calibration.
        labelled: new labelled samples since the last training began.
        trained: labelled samples of the present stream that the last training had.
        refusals: rounds in a row that ended without a roll-out.
        since_s: seconds since the last round ended, or since the loop began.
        command: number of the last command to begin a round; 0: there was none.
        served: number of the last command for which a round began.

    """

    drifting: bool = False
    labelled: Number = 0
    trained: Number = 0
    refusals: Number = 0
    since_s: Seconds = 0.0
    command: Number = 0
    served: Number = 0


def due_trigger(facts: TriggerFacts, settings: TriggerSettings) -> str:
    """Return the trigger of a round that begins now; empty: none does."""
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
