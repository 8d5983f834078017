"""ReID, which is a part of a MultiEdgeInferenceService here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, unsupported_class

__all__ = ("ReID",)

ReID = unsupported_class("ReID", MULTI_EDGE)
