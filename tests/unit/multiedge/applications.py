"""Small applications that tests can tell by their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halimede.messages import Box, IdentityAnswer, IdentityQuery, Prediction, Sighting, Track
from halimede.multiedge import Application, Finding, Item, Joint, Outcome, Stage

#: a pixel value in which there is nothing to be seen, one that the joint waits for another with, one that breaks it
EMPTY, WAITS, BREAKS = 0, 77, 78
#: tracks of the joint that knows a lot
ELEPHANT_TRACKS = 2000


class Look(Stage):
    """Says the first pixel's value."""

    def run(self, items: Sequence[Item]) -> None:
        model = self.tools.models["model"]
        answers = model.predict([model.prepare(item.image) for item in items])
        for item, said in zip(items, answers, strict=True):
            item.prediction.label = said.label
            item.prediction.value = {"camera": item.camera, "node": self.tools.node}


class Tally(Joint):
    """Answers with how many findings have come together so far; remembers tracks as they are decided."""

    def __init__(self, tools) -> None:
        super().__init__(tools)
        self.seen = 0
        self.waiting: list[tuple[bytes, float]] = []
        self.known: dict[str, Track] = {}

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        answers, tracks = {}, []
        for finding in findings:
            if finding.prediction.label == str(BREAKS):
                raise RuntimeError("this finding breaks the joint")
            if finding.prediction.label == str(WAITS):
                self.waiting.append((finding.key, now + 30))
                continue
            self.seen += 1
            answers[finding.key] = Prediction(label="together", value={"seen": self.seen, "node": finding.node})
            tracks.append(self._track(finding))
        return Outcome(answers, tracks)

    def due(self, now: float) -> Outcome:
        late = [key for key, until in self.waiting if until <= now]
        self.waiting = [(key, until) for key, until in self.waiting if until > now]
        return Outcome(dict.fromkeys(late))

    def next_due(self) -> float | None:
        return min((until for _, until in self.waiting), default=None)

    def follow(self, tracks: Sequence[Track]) -> None:
        self.known |= {track.identity: track for track in tracks}

    def ask(self, query: IdentityQuery) -> IdentityAnswer:
        return IdentityAnswer(worker="tally", error=f"{len(self.known)} known")

    def snapshot(self) -> Iterator[Track]:
        yield from self.known.values()

    def _track(self, finding: Finding) -> Track:
        box = Box(0, 0, 1, 1, 1.0, finding.prediction.label or "")
        sighting = Sighting(camera=finding.camera, time=0.0, box=box, frame=finding.key[:16].hex())
        track = Track(identity=finding.prediction.label or "?", sighting=sighting)
        self.known[track.identity] = track
        return track


def shared(parameters) -> Application:
    return Application([Look], share=True)


def together(parameters) -> Application:
    return Application([Look], joint=Tally, joins=lambda said: said.label != str(EMPTY))


class Elephant(Tally):
    """Knows a lot, which takes long to tell."""

    def snapshot(self) -> Iterator[Track]:
        sighting = Sighting(camera="cam0", time=0.0, box=Box(0, 0, 1, 1, 1.0), frame="0" * 32)
        for number in range(ELEPHANT_TRACKS):
            yield Track(identity=f"{number}", sighting=sighting)


def elephant(parameters) -> Application:
    return Application([Look], joint=Elephant)
