"""Runs a test once more that failed while the machine did not let it run: ``pytest -p tests.stalls``.

Deadlines of tests hold on a machine that is several times slower than a quiet one. None holds where the system stops
all processes of a container or of a virtual machine for a time, or where others have the cores for most of the time.
A failure says nothing about the code then. A test that fails on a busy machine that lets it run has failed. The end of
a run shows the tests that ran twice, with the first failure; there are at most as many as ``--max-suite-reruns`` says.
"""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic, process_time, sleep  # as they are, also where a test replaces them

import pytest

#: seconds for which the machine may stop a test, or let it wait for a core
STALL_S = 0.25
#: the share of a test's time for which it may wait for a core
WAITING_SHARE = 0.5
#: seconds from one look at the clock to the next
TICK_S = 0.05
#: what pytest-timeout was told of a test, which it starts once, and how often the test has begun
LIMIT, RUNS = pytest.StashKey[object](), pytest.StashKey[int]()


class Stalls:
    """Measures what the machine takes from this process, from a call of ``begin`` on."""

    def __init__(self) -> None:
        #: nanoseconds of computing, nanoseconds of waiting for a core, and time slices, of the thread that runs tests
        self._schedstat = Path(f"/proc/self/task/{threading.main_thread().native_id}/schedstat")
        self._watcher = threading.Thread(target=self._watch_clock, name="stalls", daemon=True)
        self._began = 0.0
        self._waited_before_s = 0.0
        self._longest_stop_s = 0.0
        #: when the watcher slept last, and the processor time of the process then
        self._slept, self._computed_s = 0.0, 0.0

    def begin(self) -> None:
        """Forget what was measured, and start the thread that looks at the clock if there is none yet."""
        self._began, self._waited_before_s, self._longest_stop_s = monotonic(), self._waited_s(), 0.0
        if not self._watcher.ident:
            self._slept, self._computed_s = monotonic(), process_time()
            self._watcher.start()

    def has_stalled(self) -> bool:
        """Whether the machine has stopped the process for more than STALL_S, or let it wait for most of the time."""
        waited_s = self._waited_s() - self._waited_before_s
        has_waited = waited_s > max(STALL_S, WAITING_SHARE * (monotonic() - self._began))
        return has_waited or max(self._longest_stop_s, self._stop_s()) > STALL_S

    def _waited_s(self) -> float:
        """Return the seconds that the thread of the tests has waited for a core since it began; 0 if unknown."""
        try:
            return int(self._schedstat.read_text().split()[1]) / 1e9
        except OSError:
            return 0.0

    def _stop_s(self) -> float:
        """Return by how many seconds the last sleep is too long, without those in which the process computed.

        Of a sleep that began before the test, only the time of the test counts.
        """
        return monotonic() - max(self._slept, self._began) - TICK_S - (process_time() - self._computed_s)

    def _watch_clock(self) -> None:
        """Sleep again and again, without end, and keep by how much the longest sleep was too long."""
        while True:
            self._slept, self._computed_s = monotonic(), process_time()
            sleep(TICK_S)
            self._longest_stop_s = max(self._longest_stop_s, self._stop_s())


STALLS = Stalls()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> None:
    """Keep the limit of a test for a second run."""
    item.stash[LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Measure from here on what the machine takes from the test. A second run has the test's limit as well."""
    item.stash[RUNS] = item.stash.get(RUNS, 0) + 1
    if item.stash[RUNS] > 1 and LIMIT in item.stash:
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[LIMIT])
    STALLS.begin()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let pytest-rerunfailures repeat what fails while the machine stops it. A debugger stops a test as well."""
    if not config.option.usepdb:
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1, condition=STALLS.has_stalled))
