"""FEService, which is a part of a MultiEdgeInferenceService here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, unsupported_class

__all__ = ("FEService",)

FEService = unsupported_class("FEService", MULTI_EDGE)
