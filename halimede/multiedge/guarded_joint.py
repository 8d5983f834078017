"""A joint as its worker calls it: in its thread, and whatever it raises is its own affair and not the worker's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from halimede.messages import IdentityAnswer, IdentityQuery, Prediction, Track
from halimede.multiedge.stage import Finding, Joint, Outcome
from halimede.pipeline.executor import ModelThread

log = structlog.get_logger()

#: seconds until a joint is asked again that failed at what was due, or left it undone
PAUSE_S = 1.0
#: seconds that it may take to write down what is to be kept
CLOSE_S = 3.0


@dataclass(slots=True)
class JointReply:
    """What a joint said: ``error`` is why it did not take the new findings, ``due`` when it is to be called again."""

    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""
    due: float | None = None


class GuardedJoint:
    """Calls one joint."""

    def __init__(self, joint: Joint, thread: ModelThread) -> None:
        self._joint = joint
        self._thread = thread

    async def open(self) -> None:
        """Have it read what is kept. Raises what it raises: a worker without it is of no use."""
        await self._thread.call(self._joint.open)

    async def decide(self, new: list[Finding], now: float) -> JointReply:
        """Give it new findings, and let it answer what is due."""
        return await self._thread.call(self._decide, new, now)

    async def follow(self, tracks: Sequence[Track]) -> None:
        """Let it learn what another worker has decided. What it cannot read is lost to it, and to nobody else."""
        try:
            await self._thread.call(self._joint.follow, tracks)
        except Exception:
            log.exception("joint cannot follow", tracks=len(tracks))

    async def ask(self, query: IdentityQuery) -> IdentityAnswer | None:
        """Ask it about identities."""
        return await self._thread.call(self._joint.ask, query)

    async def snapshot(self) -> list[Track] | None:
        """Return all that another one has to know; None: it failed at that."""
        try:
            return await self._thread.call(lambda: list(self._joint.snapshot()))
        except Exception:
            log.exception("joint cannot say what it knows")
            return None

    async def close(self) -> None:
        """Have it write down what is to be kept; one that hangs is not waited for."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._thread.call(self._joint.close))
        except TimeoutError:
            log.warning("the joint hangs: what it keeps is as it was written down last")
        except Exception:
            log.exception("joint not closed")

    def _decide(self, new: list[Finding], now: float) -> JointReply:
        """Runs in the thread."""
        said = JointReply()
        try:
            if new:
                said.outcomes.append(_checked(self._joint.take(new, now)))
        except Exception as error:
            log.exception("joint failed", findings=len(new))
            said.error = f"the joint failed: {type(error).__name__}: {error}"[:4096]
        try:
            said.outcomes.append(_checked(self._joint.due(now)))
            said.due = self._joint.next_due()
            if said.due is not None and not said.due > now:
                said.due = now + PAUSE_S  # it should have done that just now
        except Exception:
            log.exception("joint failed at what was due")
            said.due = now + PAUSE_S
        return said


def _checked(outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Outcome):
        raise TypeError(f"it must return an Outcome, not {type(outcome).__name__}")
    for answer in outcome.answers.values():
        if answer is not None and not isinstance(answer, Prediction):
            raise TypeError(f"an answer must be a Prediction or None, not {type(answer).__name__}")
    return outcome
