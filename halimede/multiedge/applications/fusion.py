"""``fusion``: several sources see one scene; each is classified where it is, and one answer is made of all."""

from __future__ import annotations

from halimede.multiedge.application import Application, register
from halimede.multiedge.fusion import Fusion, Named
from halimede.multiedge.fusion.settings import parse
from halimede.multiedge.stage import Parameters
from halimede.multiedge.stages import Classify


@register("fusion")
def fusion(parameters: Parameters) -> Application:
    """Put the application together: source -> classify -> named => fuse -> sink. Raises InvalidFieldError."""
    settings = parse(parameters)
    return Application(
        stages=[Classify, Named],
        share=settings.share,
        joint=lambda tools: Fusion(tools, settings),
    )
