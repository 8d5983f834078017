"""What a run was worth: pure functions of what was published, what came back, and the truth about the films."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from examples.multi_edge import boards, scene
from examples.multi_edge.record import Answered, Sent
from examples.multi_edge.scene import Camera, Truth
from halimede.inference import Model, unpack
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Fused
from halimede.multiedge.reid.evaluation import Seen, idf1, rank

NS = 1e9
SAME, TOUCHES = 0.5, 0.3
#: an identity that was given to fewer boxes is a fragment: two objects in one box, mostly
FRAGMENT = 5

Corners = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One film that was played: frames and answers by id, when it began, and how fast it was."""

    sent: Mapping[str, Sent]
    answers: Mapping[str, Answered]
    start_ns: int
    fps: float

    def index(self, time_ns: float) -> int:
        """Return which frame of the film was due at a time."""
        return round((time_ns - self.start_ns) * self.fps / NS)

    def latencies(self) -> list[float]:
        """Return milliseconds from when a frame was taken until its answer came, of all that were answered."""
        return [(self.answers[k].at_ns - s.captured_ns) / 1e6 for k, s in self.sent.items() if k in self.answers]


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture of the street, and what was found in it: corners, and who that is for the system."""

    camera: str
    index: int
    data: bytes
    boxes: Sequence[tuple[Corners, str | None]]


@dataclass(frozen=True)
class Street:
    """What re-identification was worth, and all that it said."""

    rank1: float
    idf1: float
    recall: float
    identities: int
    fragments: int
    shots: Sequence[Shot]
    names: Mapping[str, str] = field(default_factory=dict)


def street(run: Run, seconds: float, model: Model, things: Sequence[str]) -> Street:
    """Compare identities with the truth; features are those of the boxes that the system found in what was sent."""
    truth: list[Seen] = []
    found: list[Seen] = []
    crops, whose, where = [], [], []
    shots = sorted(_shots(run), key=lambda shot: (shot.index, shot.camera))
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    by_name = {camera.name: camera for camera in scene.CAMERAS}
    for shot in shots:
        there = scene.truths(by_name[shot.camera], shot.index / run.fps, seconds)
        frame = (shot.camera, shot.index)
        truth += [Seen(frame, str(t.thing), t.box) for t in there if t.visible >= scene.VISIBLE]
        for corners, who in shot.boxes:
            thing, likely = _nearest(corners, there)
            if thing is not None and thing.visible < scene.VISIBLE and likely > TOUCHES:
                continue  # hardly in the picture: finding it is neither right nor wrong
            found.append(Seen(frame, who or f"nobody-{len(found)}", corners))
            if thing is not None and likely >= SAME:
                crops.append(_crop(shot.data, corners))
                whose.append(thing.thing)
                where.append(shot.camera)
                if who:
                    votes[who][things[thing.thing]] += 1
    score = idf1(truth, found)
    features = np.stack([_features(model, crop) for crop in crops]) if crops else np.zeros((0, 1))
    counts = Counter(who for shot in shots for _, who in shot.boxes if who)
    large = [who for who, count in counts.items() if count >= FRAGMENT]
    return Street(
        rank1=rank(features, whose, where) if crops else 0.0,
        idf1=score.idf1,
        recall=score.recall,
        identities=len(large),
        fragments=len(counts) - len(large),
        shots=shots,
        names={who: names.most_common(1)[0][0] for who, names in votes.items()},
    )


def _shots(run: Run) -> list[Shot]:
    shots = []
    for key, sent in run.sent.items():
        answer = run.answers.get(key)
        said = answer.result.prediction if answer else None
        boxes = (said.boxes or []) if said else []
        who = said.value if said and isinstance(said.value, list) else [None] * len(boxes)
        pairs = [(_corners(box), name) for box, name in zip(boxes, who, strict=True)]
        shots.append(Shot(sent.camera.partition("-")[2], run.index(sent.captured_ns), sent.data, pairs))
    return shots


def _corners(box: Box) -> Corners:
    return (box.x1, box.y1, box.x2, box.y2)


def _nearest(corners: Corners, there: Sequence[Truth]) -> tuple[Truth | None, float]:
    if not there:
        return None, 0.0
    likely = overlaps(np.array(corners), np.array([t.box for t in there]))
    best = int(np.argmax(likely))
    return there[best], float(likely[best])


def _crop(data: bytes, corners: Corners) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").crop(corners))


def _features(model: Model, crop: np.ndarray) -> np.ndarray:
    (said,) = model.predict([model.prepare(crop)])
    return np.asarray(unpack(said.embeddings or b"", 1)[0])


def on_plane(camera: Camera, corners: Corners) -> tuple[float, float]:
    """Return where on the plane the middle of a box is."""
    x1, y1, x2, y2 = corners
    x, y, k = camera.to_plane @ ((x1 + x2) / 2, (y1 + y2) / 2, 1)
    return float(x / k), float(y / k)


@dataclass(frozen=True)
class Board:
    """What fusion was worth: accuracy of each camera alone and of all together, over instants that all saw in time.

    ``incomplete`` counts the other ``instants``: on a slow machine a camera's answer comes too late to be fused.
    """

    alone: Mapping[str, float]
    fused: float
    instants: Sequence[tuple[int, Fused]]
    incomplete: int

    @property
    def best(self) -> float:
        """The accuracy of the best single source."""
        return max(self.alone.values())


def board(run: Run, fused: Sequence[Fused], shown: boards.Shown) -> Board:
    """Compare what was said of each instant with what the board showed then."""
    instants = [(run.index(each.instant * NS), each) for each in fused]
    instants = [(i, each) for i, each in instants if 0 <= i < len(shown.labels)]
    right: dict[str, list[bool]] = {camera: [] for camera in boards.CAMERAS}
    together = []
    complete = [(i, each) for i, each in instants if not each.missing]
    for i, each in complete:
        truth = str(shown.labels[i])
        together.append(each.label == truth)
        for source in each.sources:
            right[source.camera.partition("-")[2]].append(source.label == truth)
    return Board(
        alone={camera: float(np.mean(said)) if said else 0.0 for camera, said in right.items()},
        fused=float(np.mean(together)) if together else 0.0,
        instants=instants,
        incomplete=len(instants) - len(complete),
    )


def shares(run: Run, nodes: Sequence[str], *, warm_s: float = 1.5) -> dict[str, float]:
    """Return each node's share of the answers that were given while frames came, after the first ``warm_s`` seconds."""
    until = max((sent.captured_ns for sent in run.sent.values()), default=0)
    since = run.start_ns + warm_s * NS
    counts = Counter(answer.node for answer in run.answers.values() if since <= answer.at_ns <= until)
    total = sum(counts.values()) or 1
    return {node: counts[node] / total for node in nodes}


def rates(run: Run, nodes: Sequence[str], seconds: float, step_s: float) -> dict[str, list[float]]:
    """Return answers a second of each node, in steps of so many seconds."""
    found = {node: [0.0] * max(1, round(seconds / step_s)) for node in nodes}
    for answer in run.answers.values():
        at = int((answer.at_ns - run.start_ns) / NS / step_s)
        steps = found.get(answer.node)
        if steps and 0 <= at < len(steps):
            steps[at] += 1 / step_s
    return found


@dataclass(frozen=True)
class Takeover:
    """What happened when a node was killed. Seconds; None: it did not happen.

    ``held``: frames that were taken before and answered after by another node.
    """

    takeover_s: float | None
    longest_s: float
    held: int
    back_s: float | None


def takeover(run: Run, killed_ns: int, node: str, camera: str) -> Takeover:
    """Look at the frames of the dead node's own camera."""
    own = [(s, run.answers[k]) for k, s in run.sent.items() if s.camera == camera and k in run.answers]
    after = [a.at_ns for s, a in own if s.captured_ns >= killed_ns and a.node != node]
    waited = [(a.at_ns - s.captured_ns) / NS for s, a in own if a.at_ns >= killed_ns]
    back = [a.at_ns for a in run.answers.values() if a.node == node and a.at_ns > killed_ns + 0.5 * NS]
    return Takeover(
        takeover_s=(min(after) - killed_ns) / NS if after else None,
        longest_s=max(waited, default=0.0),
        held=sum(s.captured_ns < killed_ns < a.at_ns and a.node != node for s, a in own),
        back_s=(min(back) - killed_ns) / NS if back else None,
    )
