"""What may be asked of a cluster that runs pods. Plain values, part of what a plan may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.gm.cluster.port import Ref


@dataclass(frozen=True, slots=True)
class Ensure:
    """Create the object, or update it to the body."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remove:
    """The cluster shall not have this object (any more)."""

    ref: Ref
    uid: str
