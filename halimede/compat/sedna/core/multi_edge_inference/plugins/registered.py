"""The endpoints of Sedna's HTTP calls between pods of multi-edge inference; topics replace them here."""

from halimede.compat.sedna.unsupported import MULTI_EDGE, absent

__all__ = ("Feature_Extraction", "Feature_Extraction_I", "ReID_I", "ReID_Server", "VideoAnalytics", "VideoAnalytics_I")

ReID_Server = absent("ReID_Server", MULTI_EDGE)
ReID_I = absent("ReID_I", MULTI_EDGE)
Feature_Extraction = absent("Feature_Extraction", MULTI_EDGE)
Feature_Extraction_I = absent("Feature_Extraction_I", MULTI_EDGE)
VideoAnalytics = absent("VideoAnalytics", MULTI_EDGE)
VideoAnalytics_I = absent("VideoAnalytics_I", MULTI_EDGE)
