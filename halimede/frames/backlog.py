"""What waits before one model: samples taken and not answered yet, within bounds, and which of them go next.

No clock, no bus: whoever takes samples or has them answered says what time it is, and does what follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from halimede.bus import Delivery
from halimede.frames.jobs import Job, Key
from halimede.frames.limits import ServerLimits
from halimede.frames.pace import Pace
from halimede.messages import Frame

#: seconds that a sample without a deadline, or with a longer one, is kept at most
LONGEST_S = 600.0


class Backlog:
    """All samples in ``jobs``; those in ``queue`` wait, in that order, and the others are in the model or beyond it.

    Both are for others to read. ``changed`` is called when a sample has come or left, and ``gone`` when it has left.
    """

    def __init__(
        self, limits: ServerLimits, pace: Pace, *, changed: Callable[[], None], gone: Callable[[], None]
    ) -> None:
        self.jobs: dict[Key, Job] = {}
        self.queue: deque[Key] = deque()
        self._limits = limits
        self._pace = pace
        self._changed = changed
        self._gone = gone
        self._bytes = 0

    def full(self, size: int) -> bool:
        """Whether there is no room for a new sample of so many bytes."""
        return len(self.jobs) >= self._limits.queue or size > self._limits.queue_bytes - self._bytes

    def add(self, key: Key, job: Job) -> None:
        """Take a new sample."""
        self.jobs[key] = job
        self._bytes += job.size
        self.queue.append(key)
        self._changed()

    def renew(self, job: Job, delivery: Delivery[Frame], until: float, pixels: int) -> bool:
        """Put a resend in its sample's place; return whether there was room for what it has more."""
        size = len(delivery.body.data)
        more = size - job.size
        if more > self._limits.queue_bytes - self._bytes:
            return False
        self._bytes += more
        job.delivery, job.until, job.size, job.pixels = delivery, until, size, pixels
        return True

    def leave(self, key: Key) -> Job:
        """Forget a sample that has its answer, or needs none."""
        job = self.jobs.pop(key)
        self._bytes -= job.size
        self._changed()
        self._gone()
        return job

    def next(self, now: float, most: int) -> tuple[list[Key], list[Key], list[Key]]:
        """Take samples off the queue: the next batch of at most so many, those too late, and those without hope.

        Too late are those that nobody waits for any more, without hope those that the model has no time left for. Both
        are still to ``leave``.
        """
        batch: list[Key] = []
        late: list[Key] = []
        hopeless: list[Key] = []
        pixels, shortest = 0, LONGEST_S
        while self.queue and len(batch) < most:
            key = self.queue[0]
            job = self.jobs[key]
            left = job.until - now
            if left <= 0:
                late.append(key)
            elif self._pace.hopeless(left):
                hopeless.append(key)
            else:
                pixels, shortest = pixels + job.pixels, min(shortest, left)
                if batch and (pixels > self._limits.pixels or self._pace.takes_ms(len(batch) + 1) > shortest * 1000):
                    break
                batch.append(key)
            self.queue.popleft()
        return batch, late, hopeless

    def put_back(self, batch: Sequence[Key]) -> None:
        """A batch was not answered: it comes first again."""
        self.queue.extendleft(reversed(batch))
