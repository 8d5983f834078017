"""ObjectDetector, which is a part of a MultiEdgeInferenceService here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, unsupported_class

__all__ = ("ObjectDetector",)

ObjectDetector = unsupported_class("ObjectDetector", MULTI_EDGE)
