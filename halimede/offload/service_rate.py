"""The measured speed of a model, and what follows from it: how many samples may wait, batch size, late samples.

A worker's pipeline has one ``ServiceRate``. A lane is one of the parallel calls of a model. Pure: no clock, no bus.
"""

from __future__ import annotations

from collections import deque

from halimede.stats.decayed import DecayedLine

#: weight of the newest call in the running mean
NEW_WEIGHT = 0.3
#: recent calls whose fastest one is used
RECENT_CALLS = 32
#: factor on the weight of the earlier calls in the fit when a call is added
FIT_WEIGHT = 0.9
#: least variance of the calls' numbers of samples, as a fraction of the squared mean, for a fit of both parts
MIN_VARIANCE = 1e-3
#: samples that may wait for each lane before the first call is measured: the model may be slow
FIRST_CAPACITY = 4
#: weight of a sample that has less time than usual in the usual time of samples; more time than usual counts at once
TIME_WEIGHT = 0.02
#: factor on the expected time of a sample that comes behind others, because calls vary
MARGIN = 1.1
#: a model is short if it answers this many full queues within the horizon; then nothing is fitted
SHORT_QUEUES = 2


class ServiceRate:
    """The running mean of a model's time for a sample, and a fitted line of call time by number of samples.

    ``queue``: most samples that may wait. ``batch``: most samples of a call. ``horizon_s``: most waiting work, in
    seconds of the model's time: a slow model gets few samples, rather than a full queue of samples that will be late.
    ``lanes``: parallel calls.

    Attributes:
        service_ms: mean milliseconds for a sample; 0: no call was measured.
        capacity: samples that may wait: those that the model answers within the horizon, and at least one.

    """

    def __init__(self, *, queue: int, batch: int, horizon_s: float, lanes: int = 1) -> None:
        self.service_ms = 0.0
        self._lanes = lanes
        self._queue = queue
        self._batch = batch
        self._horizon_s = horizon_s
        self._calls: deque[float] = deque(maxlen=RECENT_CALLS)
        #: milliseconds of calls by number of samples, and the line through them: of a call, and of each sample in it
        self._line = DecayedLine(FIT_WEIGHT)
        self._fixed_ms = self._added_ms = 0.0
        #: the time that samples usually have until their deadline, at most the horizon
        self._usual_s = horizon_s
        self.capacity = min(queue, FIRST_CAPACITY * lanes)

    def learn(self, samples: int, ms: float) -> None:
        """Record one call of the model with a number of samples, which took ``ms`` milliseconds.

        The first call includes what a model does only once, so a faster second one replaces it.
        """
        sample_ms = ms / samples
        if not self.service_ms:
            self.service_ms = sample_ms
        elif len(self._calls) == 1:
            self.service_ms = min(self.service_ms, sample_ms)
        else:
            self.service_ms += NEW_WEIGHT * (sample_ms - self.service_ms)
        self._calls.append(ms)
        if self.service_ms * self._queue * SHORT_QUEUES <= min(self._horizon_s, self._usual_s) * 1000:
            self.capacity, self._fixed_ms, self._added_ms = self._queue, 0.0, self.service_ms
        else:
            self._fit(samples, ms)
            self.capacity = self._timely_capacity()

    def _timely_capacity(self) -> int:
        """Return how many samples the model answers within the horizon, or within the usual time if that is shorter.

        It is the largest number whose ``done_ms`` is within that time. ``done_ms`` is linear in the samples while each
        has a separate call, and again when batches are full.
        """
        lanes, fixed, added = self._lanes, self._fixed_ms, self._added_ms
        total_ms = min(self._horizon_s, self._usual_s) * 1000 * lanes
        if not fixed + added:
            return self._queue
        alone = total_ms / (fixed + added)
        batched = (total_ms - fixed * (1 + lanes - 1 / self._batch)) / (fixed / self._batch + added)
        at_once = lanes if (fixed + added) * lanes <= total_ms else 1
        return int(min(self._queue, max(alone, batched, at_once)))

    @property
    def batch(self) -> int:
        """The batch size. It is 1 for the first call, while the speed of the model is unknown."""
        return min(self._batch, self.capacity) if self.service_ms else 1

    def takes_ms(self, samples: int) -> float:
        """Return the expected milliseconds of one call with ``samples`` samples.

        While all calls had one number of samples, half of their time is attributed to the call and half to its samples,
        until calls with other numbers show it.
        """
        return self._fixed_ms + self._added_ms * samples

    def done_ms(self, samples: int) -> float:
        """Return the expected milliseconds until the last of ``samples`` is answered; the first may be running."""
        if samples <= self._lanes:
            return self.takes_ms(1)
        # the running call, full batches, and for each lane a call that is not full
        calls = min(samples, 1 + self._lanes + (samples - 1) / self._batch)
        return (self._fixed_ms * calls + self._added_ms * samples) / self._lanes

    def is_late(self, before: int, left_s: float) -> bool:
        """Whether a sample with ``left_s`` seconds left, behind ``before`` others, would be late. Never if it is first.

        This also learns the usual time of samples, because only samples that can be in time should be taken.
        """
        self._usual_s = min(max(left_s, self._usual_s + TIME_WEIGHT * (left_s - self._usual_s)), self._horizon_s)
        return before > 0 and self.done_ms(before + 1) * MARGIN > left_s * 1000

    def is_hopeless(self, left_s: float) -> bool:
        """Whether even the fastest recent call took longer than ``left_s`` seconds.

        If so, the oldest recent call is forgotten, so that a model that was slow for a while is measured again.
        """
        if not self._calls or left_s * 1000 >= min(self._calls):
            return False
        self._calls.popleft()
        return True

    def _fit(self, samples: int, ms: float) -> None:
        """Fit the parts of a call and of a sample by least squares with exponential forgetting; none is below 0."""
        self._line.add(samples, ms)
        mean, mean_ms, variance, slope = self._line.fit()
        if slope is None or variance <= MIN_VARIANCE * mean * mean:
            slope = mean_ms / mean / 2
        self._added_ms = max(0.0, min(slope, mean_ms / mean))
        self._fixed_ms = mean_ms - self._added_ms * mean
