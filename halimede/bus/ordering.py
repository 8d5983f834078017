"""Order of a sender's messages, as user properties: an epoch, and a number within it.

MQTT keeps the order of one connection, but what is sent again, bridged or replayed comes late. Whoever must not take
back what was said later compares stamps. A sender that gives no number makes no claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from halimede.errors import InvalidFieldError

#: SQLite's integers end here; an epoch or number beyond is a mistake or an attack
MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SequenceNumber:
    """The position of a message in its sender's order. ``number`` 0: unknown."""

    epoch: int = 0
    number: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """The user properties that carry it."""
        return {"epoch": str(self.epoch), "number": str(self.number)}

    def overtaken_by(self, other: SequenceNumber) -> bool:
        """Whether ``other`` was sent later, as far as both numbers are known."""
        known = self.number > 0 and other.number > 0
        return known and (self.epoch, self.number) < (other.epoch, other.number)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> SequenceNumber:
        """Read user properties; without any of them all is 0. Raises InvalidFieldError of what is no number."""
        return cls(*(_number(properties.get(field, "0"), field) for field in ("epoch", "number")))


def _number(text: str, field: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_INTEGER)) or int(text) > MAX_INTEGER:
        raise InvalidFieldError(field, text, f"send a number of at most {MAX_INTEGER} as user property")
    return int(text)
