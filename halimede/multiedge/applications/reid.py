"""``reid``: objects that several cameras see get one identity each; their ways and where they were seen are told."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Prediction
from halimede.multiedge.application import Application, StageFactory, register
from halimede.multiedge.reid import Matcher, parse
from halimede.multiedge.stage import Item, Parameters, Stage
from halimede.multiedge.stages import Crop, Detect, Embed, Motion

#: how objects are found: by the worker's detector, by what moves, or the whole picture is the one object
FINDERS: dict[str, tuple[StageFactory, ...]] = {"model": (Detect,), "motion": (Motion,), "whole": ()}


class Size(Stage):
    """Say how large the picture is: an object at its rim is cut off, and teaches nobody how it looks."""

    def run(self, items: Sequence[Item]) -> None:
        """Set ``value`` of each prediction."""
        for item in items:
            height, width = item.image.shape[:2]
            item.prediction.value = {"width": int(width), "height": int(height)}


def joins(prediction: Prediction) -> bool:
    """Bring together what has objects; an empty picture is answered where it was taken."""
    return bool(prediction.embeddings)


@register("reid")
def reid(parameters: Parameters) -> Application:
    """Put the application together: source -> find -> crop -> embed => match -> sink. Raises InvalidFieldError."""
    finder = parameters.text("detect", "model", choices=tuple(FINDERS))
    settings = parse(parameters)
    return Application(
        stages=[*FINDERS[finder], Crop, Embed, Size],
        share=parameters.flag("share", default=False) and finder != "motion",
        joint=lambda tools: Matcher(tools, settings),
        joins=joins,
    )
