"""Where an edge worker's frames come from: camera topics, a folder of pictures. One file a source."""

from halimede.worker.sources.base import FrameSink, FrameSource, SourceContext, create, register

__all__ = ["FrameSink", "FrameSource", "SourceContext", "create", "register"]
