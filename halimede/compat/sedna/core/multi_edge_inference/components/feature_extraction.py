"""FEService, which is a part of a MultiEdgeInferenceService here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, absent

__all__ = ("FEService",)

FEService = absent("FEService", MULTI_EDGE)
