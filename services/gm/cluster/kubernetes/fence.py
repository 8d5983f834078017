"""Whether we may still write: what a leader does is over the moment that it may not be the leader any more."""

from __future__ import annotations

from typing import Protocol

from halimede.errors import HalimedeError


class NotLeadingError(HalimedeError):
    """Another GM may lead by now: nothing was written."""

    def __init__(self) -> None:
        super().__init__("this global manager does not lead any more: it writes nothing")


class Leadership(Protocol):
    """What of the elector is needed."""

    @property
    def leading(self) -> bool:
        """Whether nobody else can be leading now."""


def check_leading(leadership: Leadership) -> None:
    """Raise NotLeadingError if somebody else may lead."""
    if not leadership.leading:
        raise NotLeadingError
