"""Where an edge worker's frames come from: camera topics, a folder of pictures. One file a source."""

from halimede.worker.sources.base import FrameIntake, FrameSource, SourceContext, create, register

__all__ = ["FrameIntake", "FrameSource", "SourceContext", "create", "register"]
