"""The applications that come with halimede: balance (load sharing), fusion, and reid (re-identification)."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Prediction
from halimede.multiedge import fusion as fusing
from halimede.multiedge import reid as matching
from halimede.multiedge.application import Application, StageFactory, register
from halimede.multiedge.stage import Item, Parameters, Stage
from halimede.multiedge.stages import Classify, Crop, Detect, Embed, Motion

#: how objects are found: by the worker's detector, by motion, or the whole picture is the only object
FINDERS: dict[str, tuple[StageFactory, ...]] = {"model": (Detect,), "motion": (Motion,), "whole": ()}


class Size(Stage):
    """A ``Stage`` that adds the picture's size to the finding: the joint does not learn from objects cut at its rim."""

    def run(self, items: Sequence[Item]) -> None:
        """Set ``value`` of each prediction to ``{"width": ..., "height": ...}`` in pixels."""
        for item in items:
            height, width = item.image.shape[:2]
            item.prediction.value = {"width": int(width), "height": int(height)}


@register("balance")
def balance(parameters: Parameters) -> Application:
    """Each frame is answered by the worker's own model, or by a peer's which is expected to finish sooner.

    It has no joint. The parameter ``share: "false"`` keeps each worker to its own frames, for example for a comparison.
    Raises InvalidFieldError.
    """
    return Application(stages=[Classify], share=parameters.flag("share", default=True))


@register("fusion")
def fusion(parameters: Parameters) -> Application:
    """Several cameras see one scene: each member classifies its own pictures, and all findings become one answer.

    Source -> classify -> named => fuse -> sink, where => joins the findings of all members. Raises InvalidFieldError.
    """
    settings = fusing.parse(parameters)
    return Application(
        stages=[Classify, fusing.Named],
        share=settings.share,
        joint=lambda tools: fusing.Fusion(tools, settings),
    )


@register("reid")
def reid(parameters: Parameters) -> Application:
    """Objects that several cameras see get one identity each; their positions are published.

    Source -> find -> crop -> embed -> size => match -> sink, where => joins the findings of all members. A member
    answers a picture without objects itself. Raises InvalidFieldError.
    """
    finder = parameters.text("detect", "model", choices=tuple(FINDERS))
    settings = matching.parse(parameters)
    return Application(
        stages=[*FINDERS[finder], Crop, Embed, Size],
        share=parameters.flag("share", default=False) and finder != "motion",
        joint=lambda tools: matching.Matcher(tools, settings),
        joins=has_objects,
    )


def has_objects(prediction: Prediction) -> bool:
    """Whether the stages have found an object in the picture."""
    return bool(prediction.embeddings)
