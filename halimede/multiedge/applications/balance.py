"""``balance``: each frame is looked at by the worker's model, or by that of a peer which would be done with it sooner.

Frames are answered one by one, and nothing comes together: what several nodes share here is the work.
"""

from __future__ import annotations

from halimede.multiedge.application import Application, register
from halimede.multiedge.stage import Parameters
from halimede.multiedge.stages import Classify


@register("balance")
def balance(parameters: Parameters) -> Application:
    """Return the application. ``share: "false"`` keeps each worker to its own frames, such as to compare."""
    return Application(stages=[Classify], share=parameters.flag("share", default=True))
