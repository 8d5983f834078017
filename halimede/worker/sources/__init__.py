"""Sources of an edge worker's frames, a module each: camera topics, a folder of pictures, a stream that it reads."""

from halimede.worker.sources.base import FrameSink, FrameSource, SourceContext, create, register

__all__ = ["FrameSink", "FrameSource", "SourceContext", "create", "register"]
