"""Mining before inference: each frame is judged as its camera gave it, before the small model has anything to do.

What is hard then goes up at once, and the small model is asked only should nobody answer.
"""

from __future__ import annotations

import time

from halimede.frames.encodings import decode, find
from halimede.frames.seldom import Seldom
from halimede.messages import Frame, Prediction
from halimede.mining import Miner, Verdict, judge_sample
from halimede.pipeline.executor import ModelThread
from halimede.stats.ledger import Count, Ledger
from halimede.tracing import Record
from halimede.tracing.steps import MINE
from halimede.worker.preparing import INLINE_BYTES


class Foresight:
    """Judges frames with ``miner``, in the decoder's thread where that takes time."""

    def __init__(self, miner: Miner, decoder: ModelThread, ledger: Ledger) -> None:
        self._miner = miner
        self._decoder = decoder
        self._ledger = ledger
        self._seldom = Seldom()

    async def look(self, frame: Frame, trace: Record) -> Verdict:
        """Return what mining says of a frame. Raises DecodeError."""
        began = time.monotonic()
        if find(frame.encoding).cheap and len(frame.data) <= INLINE_BYTES:
            verdict = self._judge(frame)
        else:
            verdict = await self._decoder.call(self._judge, frame)
        if verdict.error:
            self._ledger.add(Count.MINING_ERRORS)
            self._seldom.warning("mining failed", error=verdict.error[:256])
        trace.step(MINE, began, time.monotonic(), verdict.hard, 0.0)
        return verdict

    def _judge(self, frame: Frame) -> Verdict:
        return judge_sample(self._miner, decode(frame))


def spoken(_: Prediction, /) -> bool:
    """Judge what the small model says of a frame that was judged before: there is nothing left to say."""
    return False
