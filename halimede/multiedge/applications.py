"""The applications that come with halimede: balance (load sharing), fusion, and reid (re-identification)."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Prediction
from halimede.multiedge import fusion, reid
from halimede.multiedge.application import Application, StageFactory, register
from halimede.multiedge.stage import Item, Parameters, Stage
from halimede.multiedge.stages import Classify, Crop, Detect, Embed, Motion

#: stages that find objects, by the value of the parameter ``detect``; ``whole``: the picture is the only object
FINDERS: dict[str, tuple[StageFactory, ...]] = {"model": (Detect,), "motion": (Motion,), "whole": ()}


class Size(Stage):
    """A ``Stage`` that adds the picture's size to the finding.

    From the size, the joint knows which objects are cut off at the picture's edge: it neither learns from them nor
    gives them new identities.
    """

    def run(self, items: Sequence[Item]) -> None:
        """Set ``value`` of each prediction to ``{"width": ..., "height": ...}`` in pixels."""
        for item in items:
            height, width = item.image.shape[:2]
            item.prediction.value = {"width": int(width), "height": int(height)}


@register("balance")
def make_balance(parameters: Parameters) -> Application:
    """Return ``balance``: a frame is answered by the worker's own model, or by a peer that should finish sooner.

    It has no joint. The parameter ``share: "false"`` keeps each worker to its own frames, for example for a comparison.
    Raises InvalidFieldError for another text in ``share``.
    """
    return Application(stages=[Classify], share=parameters.flag("share", default=True))


@register("fusion")
def make_fusion(parameters: Parameters) -> Application:
    """Return ``fusion``: members classify the pictures of one scene, and their findings become one answer.

    Source -> classify -> named => fuse -> sink, where ``named`` adds the names of the classes, and => joins the
    findings of all members. Raises InvalidFieldError for invalid parameters (``fusion.FusionSettings``).
    """
    settings = fusion.parse(parameters)
    return Application(
        stages=[Classify, fusion.Named], share=settings.share, joint=lambda tools: fusion.Fusion(tools, settings)
    )


@register("reid")
def make_reid(parameters: Parameters) -> Application:
    """Return ``reid``: objects that several cameras see get one identity each; their positions are published.

    Source -> find -> crop -> embed -> size => match -> sink, where => joins the findings of all members. A member
    answers a picture without objects itself. Parameters, besides those of the stages and of ``reid.ReidSettings``:
    ``detect`` (``model``), a key of FINDERS; ``share`` (``false``), without effect for ``motion``. Raises
    InvalidFieldError for invalid parameters.
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
    """Whether the stages have found an object in the picture, and described it in a vector."""
    return bool(prediction.embeddings)
