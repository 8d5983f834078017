"""What keeps a whole dataset from being counted; a single bad entry is named in the result instead."""

from __future__ import annotations

from halimede.errors import HalimedeError

NOT_FOUND = "DatasetNotFound"
UNREADABLE = "DatasetUnreadable"
UNSUPPORTED = "UnsupportedFormat"
NOT_INSTALLED = "NotInstalled"


class DatasetError(HalimedeError):
    """A dataset cannot be counted. ``reason`` is one word for conditions."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)
