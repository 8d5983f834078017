"""A source of an edge worker that needs no broker: a folder that it watches; and noise that nothing makes smaller."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from halimede.bus import Delivery
from halimede.messages import Result


def noise(side: int) -> bytes:
    """Return a picture that no compression makes smaller."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (side, side), np.uint8)).save(out, format="PNG")
    return out.getvalue()


class PictureFolder:
    """The folder, the pictures that come there in turn, and what a consumer hears of them, in that order."""

    def __init__(self, path: Path, pictures: Iterable[bytes]) -> None:
        self.path = path
        self.path.mkdir()
        self.results: dict[str, Result] = {}
        self.copies: Counter[str] = Counter()
        self._pictures = itertools.cycle(pictures)
        self._numbers = itertools.count()

    async def hear(self, delivery: Delivery[Result]) -> None:
        self.copies[delivery.body.id] += 1
        self.results.setdefault(delivery.body.id, delivery.body)

    def put(self) -> None:
        part = self.path / f"{next(self._numbers):04}.part"
        part.write_bytes(next(self._pictures))
        part.rename(part.with_suffix(".png"))
