"""Where each object was last seen by each camera, and where it should be now. Pure, bounded, of a camera's own clock.

Looks alone confuse objects that are alike and lose one that turns; that a thing does not jump is known of every scene.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from halimede.inference import Array

MOST_CAMERAS = 1024
MOST_OBJECTS = 512
#: how much of the speed between two pictures is believed
BELIEF = 0.5
#: identities of which is known who saw them last
MOST_LAST = 20_000


@dataclass(slots=True)
class Trajectory:
    """An object before a camera: when (seconds), its corners, and how its middle moves (pixels a second)."""

    time: float
    box: Array
    velocity: Array

    def expected(self, time: float) -> Array:
        """Return its corners at another time."""
        moved = self.velocity * (time - self.time)
        return np.asarray(self.box + np.concatenate([moved, moved]))

    def reachable(self, time: float, boxes: Array, speed: float) -> Array:
        """Say of each box whether it can be there by then, moving at most ``speed`` times its own size a second."""
        size = float(np.hypot(*(self.box[2:] - self.box[:2])))
        sizes = np.hypot(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        away = _middle(boxes) - _middle(self.box)
        far = np.hypot(away[:, 0], away[:, 1])
        return np.asarray(far <= np.maximum(size, sizes) * (1.0 + speed * abs(time - self.time)))


class Trajectories:
    """The latest positions by camera and identity, kept for ``keep`` seconds."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._cameras: OrderedDict[str, OrderedDict[str, Trajectory]] = OrderedDict()
        self._last: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def before(self, camera: str, time: float) -> Iterator[tuple[str, Trajectory]]:
        """Yield who was before a camera a short time ago (or will have been: pictures may come out of order)."""
        for identity, step in self._cameras.get(camera, {}).items():
            if abs(time - step.time) <= self._keep:
                yield identity, step

    def elsewhere(self, identity: str, camera: str, time: float) -> float:
        """Return how many seconds ago another camera saw somebody last; infinity where none did since this one."""
        last, at = self._last.get(identity, (camera, 0.0))
        return float("inf") if last == camera else abs(time - at)

    def seen(self, camera: str, identity: str, time: float, box: Array) -> None:
        """Note a step."""
        self._last[identity] = (camera, time)
        self._last.move_to_end(identity)
        if len(self._last) > MOST_LAST:
            self._last.popitem(last=False)
        steps = self._cameras.setdefault(camera, OrderedDict())
        self._cameras.move_to_end(camera)
        while len(self._cameras) > MOST_CAMERAS:
            self._cameras.popitem(last=False)
        if steps and time < next(reversed(steps.values())).time - self._keep:
            steps.clear()  # the camera's clock was put back
        old = steps.get(identity)
        if old and time < old.time:
            return
        velocity = np.zeros(2) if old is None else old.velocity
        if old and 0 < time - old.time <= self._keep:
            now = (_middle(box) - _middle(old.box)) / (time - old.time)
            velocity = now if not old.velocity.any() else BELIEF * now + (1 - BELIEF) * old.velocity
        steps[identity] = Trajectory(time, box, velocity)
        steps.move_to_end(identity)
        while steps and (len(steps) > MOST_OBJECTS or next(iter(steps.values())).time < time - self._keep):
            steps.popitem(last=False)


def _middle(boxes: Array) -> Array:
    return np.asarray((boxes[..., :2] + boxes[..., 2:]) / 2)
