"""Sources of an edge worker's frames: camera topics, a folder of pictures. Each has its own file."""

from halimede.worker.sources.base import FrameSink, FrameSource, SourceContext, create, register

__all__ = ["FrameSink", "FrameSource", "SourceContext", "create", "register"]
