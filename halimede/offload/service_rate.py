"""The measured speed of a model, and derived values: credits, batch size, late samples.

Pure: no clock, no bus.
"""

from __future__ import annotations

from collections import deque

from halimede.stats.decayed import DecayedLine

#: weight of the newest call in the running mean
NEWEST = 0.3
#: recent calls whose fastest one is used
KEPT = 32
#: weight of a call in the fit when the next call is added
FADES = 0.9
#: least variance of the calls' sizes, as a share of the squared mean, from which the fit predicts other sizes
ALIKE = 1e-3
#: samples that may wait for each lane before the first call is measured: the model may be slow
UNKNOWN = 4
#: weight of the newest sample in the available time of samples if it has less than usual; more applies at once
SLOWLY = 0.02
#: factor on a sample's expected time before it is accepted behind others: calls vary
MARGIN = 1.1
#: a model is short if it answers this many full queues within the horizon: no further details are needed
SHORT = 2


class ServiceRate:
    """The running mean of a model's time for a sample, and a fitted line of call time by number of samples.

    ``queue`` and ``batch`` are the upper bounds; ``horizon_s`` bounds the waiting work, in seconds of the model's time,
    so that a slow model is known before its queue is full of samples that will be late. ``lanes``: parallel calls.
    """

    def __init__(self, *, queue: int, batch: int, horizon_s: float, lanes: int = 1) -> None:
        self.service_ms = 0.0
        self._lanes = lanes
        self._queue = queue
        self._batch = batch
        self._horizon_s = horizon_s
        self._calls: deque[float] = deque(maxlen=KEPT)
        #: milliseconds of calls by number of samples, and the line through them
        self._line = DecayedLine(FADES)
        self._fixed_ms = self._each_ms = 0.0
        self._wanted_s = horizon_s
        #: samples that may wait: those that the model answers in time, and at least one
        self.places = min(queue, UNKNOWN * lanes)

    def learn(self, samples: int, ms: float) -> None:
        """Record one call of the model: number of samples, milliseconds.

        The first call includes what a model does once: a faster second one replaces it.
        """
        sample_ms = ms / samples
        if not self.service_ms:
            self.service_ms = sample_ms
        elif len(self._calls) == 1:
            self.service_ms = min(self.service_ms, sample_ms)
        else:
            self.service_ms += NEWEST * (sample_ms - self.service_ms)
        self._calls.append(ms)
        if self.service_ms * self._queue * SHORT <= min(self._horizon_s, self._wanted_s) * 1000:
            self.places, self._fixed_ms, self._each_ms = self._queue, 0.0, self.service_ms
        else:
            self._fit(samples, ms)
            self.places = self._capacity()

    def _capacity(self) -> int:
        """Return how many samples the model answers within the horizon, or within a shorter deadline.

        The largest number whose ``done_ms`` is within it: that is linear in the samples while each has a separate call,
        and once batches are full.
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
        """Return the expected milliseconds of one call with ``samples`` samples.

        While all calls had one size, half of their time is attributed to the call and half to its samples: calls of
        other sizes then measure it.
        """
        return self._fixed_ms + self._each_ms * samples

    def done_ms(self, samples: int) -> float:
        """Return the milliseconds until the last of ``samples`` is answered; the first may be in the model."""
        if samples <= self._lanes:
            return self.takes_ms(1)
        calls = min(samples, 1 + self._lanes + (samples - 1) / self._batch)
        return (self._fixed_ms * calls + self._each_ms * samples) / self._lanes

    def late(self, before: int, left_s: float) -> bool:
        """Whether a sample behind ``before`` others would be late; never the first, which measures the model.

        This also learns the available time of samples: places are offered only for samples that can be in time.
        """
        self._wanted_s = min(max(left_s, self._wanted_s + SLOWLY * (left_s - self._wanted_s)), self._horizon_s)
        return before > 0 and self.done_ms(before + 1) * MARGIN > left_s * 1000

    def hopeless(self, left_s: float) -> bool:
        """Whether even the fastest recent call took longer than the time left.

        Each refusal forgets one call: so a model that was slow for a while is measured again.
        """
        if not self._calls or left_s * 1000 >= min(self._calls):
            return False
        self._calls.popleft()
        return True

    def _fit(self, samples: int, ms: float) -> None:
        """Fit the line by least squares with exponential forgetting; neither part is below 0."""
        self._line.add(samples, ms)
        mean, mean_ms, variance, slope = self._line.fit()
        if slope is None or variance <= ALIKE * mean * mean:
            slope = mean_ms / mean / 2
        self._each_ms = max(0.0, min(slope, mean_ms / mean))
        self._fixed_ms = mean_ms - self._each_ms * mean
