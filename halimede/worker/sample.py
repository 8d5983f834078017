"""An accepted frame on its way through an edge worker, and what was said of it: what the edge loop hands around.

Each step that it takes is written into its trace and into the worker's times, here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from halimede.frames.compute import Outcome, answer, run
from halimede.frames.loaded import Loaded
from halimede.frames.reasons import Reason
from halimede.frames.slot import Slot
from halimede.inference import Array, Model, SampleError, isolate
from halimede.messages import Frame, Prediction, Reply, Result
from halimede.mining import Miner, Verdict, judge
from halimede.pipeline.upload_policy.triage import Decision
from halimede.tracing import EdgeTimes, Record
from halimede.tracing.steps import MINE, MODEL, OFFLOAD, RESULT, WAIT
from halimede.worker.settings import Settings

#: characters of a label that a trace shows
SHOWN = 256


class Judged(Struct, eq=False):
    """What the model and mining said of one sample; when mining began and ended (monotonic)."""

    outcome: Outcome
    verdict: Verdict
    began: float
    ended: float


def answer_and_judge(model: Model, miner: Miner, arrays: Sequence[Array]) -> tuple[list[Judged], float]:
    """Ask a model and mining; return what they said, and the milliseconds of CPU that it took this thread.

    What the small model cannot answer is the cloud's to answer, hence hard.
    """
    began = time.thread_time()
    said = judged(miner, run(model, arrays, len(arrays))[0])
    return said, (time.thread_time() - began) * 1000


async def judge_again(
    slot: Slot, canary: Loaded, miner: Miner, said: dict[Sample, Judged], samples: Sequence[Sample]
) -> None:
    """Ask the model before what a canary failed at, one by one: their pixels are counted nowhere. Changes ``said``."""
    for sample in samples:
        before, failed = slot.before(canary), said[sample].outcome
        if before is None or failed.prediction is not None:
            continue
        with before.holding():
            (again,) = await before.thread.call(_read_and_judge, before.model, miner, sample.frame)
        before.learn([again.outcome])
        if again.outcome.prediction is not None:
            said[sample], sample.version = again, before.version
            slot.strike(canary, failed.error)


def answer_and_judge_one(model: Model, miner: Miner, array: Array) -> Judged:
    """Ask a model and mining about one sample, as ``answer_and_judge`` does."""
    began = time.monotonic()
    (answer,) = isolate((array,), model.predict)
    ended = time.monotonic()
    ms = (ended - began) * 1000
    if isinstance(answer, SampleError):
        outcome, verdict = Outcome(None, str(answer), batch=1, ms=ms, began=began), Verdict(hard=True)
    else:
        outcome, verdict = Outcome(answer, "", batch=1, ms=ms, began=began), judge(miner, answer)
    return Judged(outcome, verdict, ended, time.monotonic())


def _read_and_judge(model: Model, miner: Miner, frame: Frame) -> list[Judged]:
    return judged(miner, answer(model, [frame], 1)[0])


def judged(miner: Miner, outcomes: Sequence[Outcome]) -> list[Judged]:
    """Ask mining about what a model said. What it could not answer is hard."""
    verdicts = []
    began = time.monotonic()
    for outcome in outcomes:
        said = outcome.prediction
        verdict = judge(miner, said) if said is not None else Verdict(hard=True)
        ended = time.monotonic()
        verdicts.append(Judged(outcome, verdict, began, ended))
        began = ended
    return verdicts


class Sample(Struct, eq=False):
    """An accepted frame. ``patient``: it gives back its place among the patient ones at the end.

    ``accepted`` is the loop's time, ``ready`` the same moment on the clock of ``trace``; ``version`` is the version of
    the small model that it is given to.
    """

    frame: Frame
    accepted: float
    patient: bool
    trace: Record
    ready: float
    version: str = ""
    #: the other edge worker whose model spoke; empty: the own one
    peer: str = ""
    #: a peer could not answer it: it stays here
    failed: bool = False
    #: what was decided before its model has spoken, where mining looks at samples
    decision: Decision | None = None
    #: bytes that went up, of one that was written for that
    uploaded: int = 0

    def judged(self, said: Judged, times: EdgeTimes) -> None:
        """Note that it waited, and what the model and mining made of it."""
        outcome, ready, step = said.outcome, self.ready, self.trace.step
        began, prediction = outcome.began, outcome.prediction
        step(WAIT, ready, began)
        step(MODEL, began, began + outcome.ms / 1000, outcome.batch)
        score = (prediction.score if prediction is not None else None) or 0.0
        step(MINE, said.began, said.ended, said.verdict.hard, score)
        times.wait.record((began - ready) * 1000)

    def offloaded(self, began: float, reply: Reply | None, reason: Reason, *, sent: bool) -> None:
        """Note what became of the offload that began then and ends now."""
        ended = time.monotonic()
        self.trace.step(OFFLOAD, began, ended, reply.worker if reply else "", "" if reply else str(reason), sent)

    def answered(self, began: float, result: Result) -> None:
        """Note that the broker has taken the result, which was handed over at ``began``."""
        label = (result.label or "")[:SHOWN]
        self.trace.step(RESULT, began, time.monotonic(), result.by, result.hard, label)

    def result(
        self,
        settings: Settings,
        outcome: Outcome,
        now: float,
        decision: Decision,
        *,
        reply: Reply | None = None,
        offloaded: float | None = None,
        by: Literal["cloud", "joint"] = "cloud",
    ) -> Result:
        """Return the final answer: the reply's, which is ``by`` them, else the edge's own.

        ``now`` and ``offloaded`` are the loop's time.
        """
        edge = outcome.prediction
        final = (reply.prediction if reply else edge) or Prediction()
        frame = self.frame
        return Result(
            id=frame.id.hex(),
            service=settings.service,
            camera=frame.camera,
            sequence=frame.sequence,
            captured_ns=frame.captured_ns,
            by=by if reply else "peer" if self.peer else "edge",
            hard=decision.hard,
            hardness=decision.hardness,
            cut=decision.cut,
            audit=decision.audit,
            label=final.label,
            score=final.score,
            prediction=final,
            edge=edge if reply else None,
            worker=(reply.by or reply.worker) if reply else self.peer or settings.worker,
            node=settings.node,
            model=reply.model if reply else self.version,
            tier=(reply.tier or settings.next_tier) if reply else settings.tier,
            #: a tier in between could not ask on, and answered what it found hard itself
            reason=reply.reason if reply else "",
            total_ms=(now - self.accepted) * 1000,
            edge_ms=outcome.ms,
            offload_ms=(now - offloaded) * 1000 if offloaded is not None else 0.0,
        )
