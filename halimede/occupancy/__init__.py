"""Occupancy: from the results of frames to events for people, by camera, label and zone."""

from halimede.occupancy.objects import DetectedObject, detected_objects
from halimede.occupancy.tracker import MAX_CAMERAS, BestFrame, OccupancyChange, OccupancyTracker

__all__ = ["MAX_CAMERAS", "BestFrame", "DetectedObject", "OccupancyChange", "OccupancyTracker", "detected_objects"]
