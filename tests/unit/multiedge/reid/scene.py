"""A plane with objects on it, three cameras that see overlapping parts of it, and what a matcher says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from halimede.inference import pack
from halimede.messages import Box, Prediction, Sighting
from halimede.multiedge.reid import Matcher, parse
from halimede.multiedge.reid.evaluation import Seen
from halimede.multiedge.stage import Finding, JointTools, Outcome, Parameters

LENGTH = 64
SIDE = 28.0
VIEW = (240.0, 240.0)
NOON_NS = 1_795_262_400_000_000_000


def matcher(folder: Path, **parameters: object) -> Matcher:
    given = Parameters({name: str(value) for name, value in parameters.items()})
    made = Matcher(JointTools(given, folder), parse(given))
    made.open()
    return made


def looks(count: int, seed: int = 0) -> np.ndarray:
    """So many objects that look different: unit vectors."""
    made = np.random.default_rng(seed).normal(size=(count, LENGTH))
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def box(x: float, y: float) -> Box:
    return Box(x - SIDE / 2, y - SIDE / 2, x + SIDE / 2, y + SIDE / 2, 0.9, "thing")


def finding(
    vectors: np.ndarray, places: list[tuple[float, float]], *, camera: str = "door", number: int = 0, ms: float = 0.0
) -> Finding:
    """What a worker found in the frame of a number, ``ms`` after noon."""
    prediction = Prediction(boxes=[box(x, y) for x, y in places], embeddings=pack(np.atleast_2d(vectors)))
    key = number.to_bytes(8, "big") + camera.encode().ljust(8, b"\0")[:8] + b"asker"
    return Finding(key, camera, f"lobby-{camera}", "edge0", number, NOON_NS + int(ms * 1e6), prediction)


def who(outcome: Outcome) -> list[str | None]:
    """The identities of the one finding that was answered."""
    (answer,) = outcome.answers.values()
    assert answer is not None
    return answer.value


def sighting(camera: str = "door", time: float = 100.0) -> Sighting:
    return Sighting(camera=camera, time=time, box=box(50, 50), frame="0" * 32)


@dataclass
class Scene:
    """Objects that move and turn back at the rim, ten pictures a second by each of three cameras."""

    objects: int = 12
    noise: float = 0.5
    seed: int = 0
    truth: list[Seen] = field(default_factory=list)
    found: list[Seen] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)
        self.looks = looks(self.objects, self.seed)
        self.places = self.draw.uniform((20, 20), (580, 220), (self.objects, 2))
        self.speeds = self.draw.uniform(-80, 80, (self.objects, 2))

    def picture(self, number: int) -> list[tuple[Finding, list[int]]]:
        """Let a tenth of a second pass; return what each camera found and which objects these are."""
        self.places += self.speeds * 0.1
        self.speeds = np.where((self.places < 15) | (self.places > (585, 225)), -self.speeds, self.speeds)
        return [self._of(camera, number) for camera in range(3)]

    def told(self, found: Finding, objects: list[int], outcome: Outcome) -> None:
        """Note what was said, beside the truth."""
        frame = (found.camera, found.sequence)
        boxes = found.prediction.boxes or []
        for number, at, identity in zip(objects, boxes, who(outcome), strict=True):
            corners = (at.x1, at.y1, at.x2, at.y2)
            self.truth.append(Seen(frame, str(number), corners))
            self.found.append(Seen(frame, identity or f"nobody {len(self.found)}", corners))

    def _of(self, camera: int, number: int) -> tuple[Finding, list[int]]:
        left = camera * 180.0
        inside = (self.places[:, 0] > left + SIDE / 2) & (self.places[:, 0] < left + VIEW[0] - SIDE / 2)
        seen = np.flatnonzero(inside).tolist()
        noise = self.draw.normal(size=(len(seen), LENGTH)) * self.noise / np.sqrt(LENGTH)
        vectors = self.looks[seen] + noise
        places = [(float(x - left), float(y)) for x, y in self.places[seen] + self.draw.normal(size=(len(seen), 2))]
        self.vectors.append(vectors)
        return finding(vectors, places, camera=f"view{camera}", number=number, ms=number * 100.0), seen
