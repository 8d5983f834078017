"""The applications that come with halimede: balance (load sharing), fusion, and reid (re-identification)."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Prediction
from halimede.multiedge import fusion, reid
from halimede.multiedge.application import Application, StageFactory, register
from halimede.multiedge.stage import Item, Parameters, Stage
from halimede.multiedge.stages import Classify, Crop, Detect, Embed, Motion

#: how objects are found: by the worker's detector, by motion, or the whole picture is the only object
FINDERS: dict[str, tuple[StageFactory, ...]] = {"model": (Detect,), "motion": (Motion,), "whole": ()}


class Size(Stage):
    """A ``Stage`` that adds the picture's size to the finding.

    The joint does not learn from objects cut at the picture's rim.
    """

    def run(self, items: Sequence[Item]) -> None:
        """Set ``value`` of each prediction to ``{"width": ..., "height": ...}`` in pixels."""
        for item in items:
            height, width = item.image.shape[:2]
            item.prediction.value = {"width": int(width), "height": int(height)}


@register("balance")
def make_balance(parameters: Parameters) -> Application:
    """Each frame is answered by the worker's own model, or by a peer's which is expected to finish sooner.

    It has no joint. The parameter ``share: "false"`` keeps each worker to its own frames, for example for a comparison.
    Raises InvalidFieldError.
    """
    return Application(stages=[Classify], share=parameters.flag("share", default=True))


@register("fusion")
def make_fusion(parameters: Parameters) -> Application:
    """Several cameras see one scene: each member classifies its own pictures, and all findings become one answer.

    Source -> classify -> named => fuse -> sink, where ``named`` adds the names of the classes, and => joins the
    findings of all members. Raises InvalidFieldError.
    """
    settings = fusion.parse(parameters)
    return Application(
        stages=[Classify, fusion.Named], share=settings.share, joint=lambda tools: fusion.Fusion(tools, settings)
    )


@register("reid")
def make_reid(parameters: Parameters) -> Application:
    """Objects that several cameras see get one identity each; their positions are published.

    Source -> find -> crop -> embed -> size => match -> sink, where => joins the findings of all members. A member
    answers a picture without objects itself. Raises InvalidFieldError.
    """
    finder = parameters.text("detect", "model", choices=tuple(FINDERS))
    settings = reid.parse(parameters)
    return Application(
        stages=[*FINDERS[finder], Crop, Embed, Size],
        # Motion compares a picture with earlier ones of its camera, so its frames stay at one worker
        share=parameters.flag("share", default=False) and finder != "motion",
        joint=lambda tools: reid.Matcher(tools, settings),
        joins=has_objects,
    )


def has_objects(prediction: Prediction) -> bool:
    """Whether the stages have found an object in the picture."""
    return bool(prediction.embeddings)
