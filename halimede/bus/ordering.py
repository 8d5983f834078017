"""The order of a sender's messages, as user properties: an epoch (the sender's life), and a number within it.

MQTT keeps the order of one connection, but repeated, bridged or replayed messages arrive late. A receiver that must not
replace a newer state by an older one compares sequence numbers. A sender without a number makes no claim.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from halimede.errors import InvalidFieldError

#: SQLite's largest integer; a larger epoch or number is a mistake or an attack
MAX_INTEGER = 2**63 - 1
#: seconds since 1970: 2026, for machines whose clock is not set; and most seconds that a sender's clock may be ahead
LEAST_CLOCK, CLOCK_LEEWAY_S = 1_767_225_600, 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class SequenceNumber:
    """The position of a message in its sender's order: ``number`` within an ``epoch``. ``number`` 0: unknown."""

    epoch: int = 0
    number: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """The user properties that carry it: ``epoch`` and ``number``, as decimal text."""
        return {"epoch": str(self.epoch), "number": str(self.number)}

    def is_overtaken_by(self, other: SequenceNumber) -> bool:
        """Whether ``other`` was sent later. False if a number is unknown."""
        is_comparable = self.number > 0 and other.number > 0
        return is_comparable and (self.epoch, self.number) < (other.epoch, other.number)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> SequenceNumber:
        """Return the position in user properties; missing ones are 0.

        Raises InvalidFieldError for a value that is no number.
        """
        return cls(*(_number(properties.get(field, "0"), field) for field in ("epoch", "number")))


def is_plausible_epoch(epoch: int) -> bool:
    """Whether an epoch fits a clock: the first epoch of a sender is its clock's seconds since 1970, which may be wrong.

    A receiver that accepted any other epoch would ignore all correct senders afterwards.
    """
    return epoch <= max(time.time(), LEAST_CLOCK) + CLOCK_LEEWAY_S


def check_epoch(epoch: int, field: str = "epoch") -> int:
    """Return an epoch. Raises InvalidFieldError, which names ``field``, for one that fits no clock."""
    if not is_plausible_epoch(epoch):
        raise InvalidFieldError(field, epoch, "no clock explains it: set the sender's clock and start it again")
    return epoch


def _number(text: str, field: str) -> int:
    """Return the number in a text. Raises InvalidFieldError for other text, and above ``MAX_INTEGER``."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_INTEGER)) or int(text) > MAX_INTEGER:
        raise InvalidFieldError(field, text, f"send a number of at most {MAX_INTEGER} as user property")
    return int(text)
