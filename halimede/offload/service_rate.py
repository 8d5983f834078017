"""The measured speed of a model, and what follows: credits, batch size, samples that would be late.

Pure: no clock, no bus.
"""

from __future__ import annotations

from collections import deque

from halimede.stats.decayed import DecayedLine

#: weight of the newest call in the running mean
NEWEST = 0.3
#: calls that the fastest one is looked up in
KEPT = 32
#: weight that a call still has in the fit when the next one has come
FADES = 0.9
#: variance of the calls' sizes, as a share of the mean one's square, from which they say something of other sizes
ALIKE = 1e-3
#: samples that may wait for each lane before the first call is measured: a model may turn out to be slow
UNKNOWN = 4
#: weight of the newest sample in how much time samples have, where it has less than usual; at once where it has more
SLOWLY = 0.02
#: what a sample is expected to take is taken so many times, before it is let in behind others: calls vary
MARGIN = 1.1
#: a model is short where so many full queues are done within the horizon: nothing more has to be known of it
SHORT = 2


class ServiceRate:
    """The running mean of one model's time for a sample, and a line fitted to how its calls grow with their samples.

    ``queue`` and ``batch`` are the upper bounds; ``horizon_s`` is how much work may wait, in seconds of the model's
    time, so that a slow model is known as slow before its queue is full of samples that will be too late.
    ``lanes``: calls that run at a time.
    """

    def __init__(self, *, queue: int, batch: int, horizon_s: float, lanes: int = 1) -> None:
        self.service_ms = 0.0
        self._lanes = lanes
        self._queue = queue
        self._batch = batch
        self._horizon_s = horizon_s
        self._calls: deque[float] = deque(maxlen=KEPT)
        #: milliseconds of calls by their samples, and the line through them
        self._line = DecayedLine(FADES)
        self._fixed_ms = self._each_ms = 0.0
        self._wanted_s = horizon_s
        #: samples that may wait: what the model answers in time, and at least one
        self.places = min(queue, UNKNOWN * lanes)

    def learn(self, samples: int, ms: float) -> None:
        """Record one call of the model: number of samples, milliseconds."""
        each = ms / samples
        self.service_ms = each if not self.service_ms else self.service_ms + NEWEST * (each - self.service_ms)
        self._calls.append(ms)
        if self.service_ms * self._queue * SHORT <= min(self._horizon_s, self._wanted_s) * 1000:
            self.places, self._fixed_ms, self._each_ms = self._queue, 0.0, self.service_ms
        else:
            self._fit(samples, ms)
            self.places = self._capacity()

    def _capacity(self) -> int:
        """Return how many samples the model answers within the horizon, or within their deadline if that is shorter.

        The largest number of which ``done_ms`` is within it: that is linear in the samples, as long as each has a call
        of its own, and once batches are full.
        """
        lanes, fixed, each = self._lanes, self._fixed_ms, self._each_ms
        total_ms = min(self._horizon_s, self._wanted_s) * 1000 * lanes
        if not fixed + each:
            return self._queue
        alone = total_ms / (fixed + each)
        batched = (total_ms - fixed * (1 + lanes - 1 / self._batch)) / (fixed / self._batch + each)
        at_once = lanes if (fixed + each) * lanes <= total_ms else 1
        return int(min(self._queue, max(alone, batched, at_once)))

    @property
    def batch(self) -> int:
        """The batch size. It is 1 for the first call, while the speed of the model is unknown."""
        return min(self._batch, self.places) if self.service_ms else 1

    def takes_ms(self, samples: int) -> float:
        """Return the milliseconds that one call with so many samples is expected to take.

        While all calls were of one size, half of what they took is thought to be for the call and not for its samples:
        so it comes to be known.
        """
        return self._fixed_ms + self._each_ms * samples

    def done_ms(self, samples: int) -> float:
        """Return the milliseconds until the last of so many is answered, the first of which may be in the model."""
        if samples <= self._lanes:
            return self.takes_ms(1)
        calls = min(samples, 1 + self._lanes + (samples - 1) / self._batch)
        return (self._fixed_ms * calls + self._each_ms * samples) / self._lanes

    def late(self, before: int, left_s: float) -> bool:
        """Whether a sample with ``before`` samples in front would be late; never the first, which measures the model.

        How much time samples have is learned here: places are offered for what can be in time only.
        """
        self._wanted_s = min(max(left_s, self._wanted_s + SLOWLY * (left_s - self._wanted_s)), self._horizon_s)
        return before > 0 and self.done_ms(before + 1) * MARGIN > left_s * 1000

    def hopeless(self, left_s: float) -> bool:
        """Whether even the fastest recent call took longer than the time left.

        Each refusal forgets one call: a model that was slow for a while gets to show that it no longer is.
        """
        if not self._calls or left_s * 1000 >= min(self._calls):
            return False
        self._calls.popleft()
        return True

    def _fit(self, samples: int, ms: float) -> None:
        """Draw the line by least squares with exponential forgetting; neither part of it is below 0."""
        self._line.add(samples, ms)
        mean, mean_ms, variance, slope = self._line.fit()
        if slope is None or variance <= ALIKE * mean * mean:
            slope = mean_ms / mean / 2
        self._each_ms = max(0.0, min(slope, mean_ms / mean))
        self._fixed_ms = mean_ms - self._each_ms * mean
