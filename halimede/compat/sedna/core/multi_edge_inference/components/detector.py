"""ObjectDetector, which is a part of a MultiEdgeInferenceService here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, absent

__all__ = ("ObjectDetector",)

ObjectDetector = absent("ObjectDetector", MULTI_EDGE)
