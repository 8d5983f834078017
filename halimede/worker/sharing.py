"""Frames that peers look at: given to them as they come or while they wait, and done here where none does."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine

import structlog

from halimede.errors import DecodeError
from halimede.frames.compute import Outcome
from halimede.frames.reasons import OffloadError, Reason
from halimede.mining import Miner
from halimede.worker.answering import Answering
from halimede.worker.asking import Share
from halimede.worker.sample import Judged, Sample, judged
from halimede.worker.turns import Turns

log = structlog.get_logger()


class Sharing:
    """Gives frames to peers. ``beside`` runs work beside the loop, ``conclude`` answers what a model has spoken of."""

    def __init__(
        self,
        share: Share,
        *,
        answering: Answering,
        turns: Turns,
        miner: Miner,
        beside: Callable[[Coroutine[None, None, None], str], None],
        conclude: Callable[[Sample, Judged], Coroutine[None, None, None]],
    ) -> None:
        self._share = share
        self._answering = answering
        self._turns = turns
        self._miner = miner
        self._beside = beside
        self._conclude = conclude

    def elsewhere(self) -> bool:
        """Return whether a peer shall look at the next frame."""
        return self._share.elsewhere()

    def give(self, sample: Sample) -> None:
        """Have a peer look at a frame, beside the loop; where none does, the own model."""
        self._beside(self._look(sample), f"share {sample.frame.id.hex()}")

    def pass_on(self) -> None:
        """Give to peers what waits here and would be done there sooner: they have said something new."""
        while len(self._turns) > 1:
            if self._turns.newest().failed or not self._share.elsewhere():
                break
            self.give(self._turns.withdraw())

    async def _look(self, sample: Sample) -> None:
        try:
            reply = await self._share.ask(sample.frame, self._answering.time_left(sample), sample.trace)
        except OffloadError as error:
            if error.fatal:  # it ended workers: not this one, too
                await self._answering.alone(sample, Outcome(error=error.detail))
                return
            sample.failed = error.reason is Reason.ERROR
            log.debug("frame done at home", frame=sample.frame.id.hex(), reason=error.reason)
            await self._at_home(sample)
            return
        except Exception:
            # a defect in sharing must not cost the frame its answer
            log.exception("sharing failed", frame=sample.frame.id.hex())
            await self._at_home(sample)
            return
        sample.peer = reply.worker
        outcome = Outcome(reply.prediction, batch=reply.batch, ms=reply.compute_ms, began=time.monotonic())
        await self._conclude(sample, judged(self._miner, [outcome])[0])

    async def _at_home(self, sample: Sample) -> None:
        try:
            model, array = await self._turns.prepare(sample.frame)
        except DecodeError as error:
            await self._answering.alone(sample, Outcome(error=str(error), unfit=True))
            return
        sample.version, sample.ready = model.version, time.monotonic()
        self._turns.put(sample, model, array)
