"""The endpoints of Sedna's HTTP calls between pods of multi-edge inference; topics replace them here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, unsupported_class

__all__ = ("Feature_Extraction", "Feature_Extraction_I", "ReID_I", "ReID_Server", "VideoAnalytics", "VideoAnalytics_I")

ReID_Server = unsupported_class("ReID_Server", MULTI_EDGE)
ReID_I = unsupported_class("ReID_I", MULTI_EDGE)
Feature_Extraction = unsupported_class("Feature_Extraction", MULTI_EDGE)
Feature_Extraction_I = unsupported_class("Feature_Extraction_I", MULTI_EDGE)
VideoAnalytics = unsupported_class("VideoAnalytics", MULTI_EDGE)
VideoAnalytics_I = unsupported_class("VideoAnalytics_I", MULTI_EDGE)
