"""ReID, which is a part of a MultiEdgeInferenceService here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, absent

__all__ = ("ReID",)

ReID = absent("ReID", MULTI_EDGE)
