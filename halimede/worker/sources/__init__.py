"""Where an edge worker's frames come from: camera topics, a folder of pictures. One file a source."""

from halimede.worker.sources.base import Context, Intake, Source, create, register

__all__ = ["Context", "Intake", "Source", "create", "register"]
