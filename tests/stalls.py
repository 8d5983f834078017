"""Runs a test once more that failed while the machine did not let it run: ``pytest -p tests.stalls``.

Deadlines of tests hold on a machine that is several times slower than a quiet one. None holds where other processes
have the cores for long, or where the system stops all processes of a container or of a virtual machine for a time. A
failure says nothing about the code then. A test that fails on a quiet machine has failed. The end of a run lists the
tests that ran twice; there are at most as many as ``--max-suite-reruns`` says.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

#: seconds that the machine may take from a test
STALL_S = 0.25
#: seconds from one look at the clock to the next
TICK_S = 0.05


class Stalls:
    """Measures what the machine takes from this process, from a call of ``begin`` on."""

    def __init__(self) -> None:
        #: nanoseconds of computing, nanoseconds of waiting for a core, and time slices, of the thread that runs tests
        self._main = Path(f"/proc/self/task/{threading.main_thread().native_id}/schedstat")
        self._watch = threading.Thread(target=self._watch_clock, name="stalls", daemon=True)
        self._waited_s = 0.0
        self._stopped_s = 0.0

    def begin(self) -> None:
        """Forget what was measured, and start the thread that looks at the clock if there is none yet."""
        if not self._watch.ident:
            self._watch.start()
        self._stopped_s, self._waited_s = 0.0, self._total_waited_s()

    def has_stalled(self) -> bool:
        """Whether the machine has taken more than STALL_S: the longest stop, or all waiting for a core together."""
        return max(self._stopped_s, self._total_waited_s() - self._waited_s) > STALL_S

    def _total_waited_s(self) -> float:
        """Return the seconds that the thread of the tests has waited for a core since it began."""
        return int(self._main.read_text().split()[1]) / 1e9

    def _watch_clock(self) -> None:
        """Sleep again and again, without end, and keep by how much the longest sleep was too long."""
        while True:
            due = time.monotonic() + TICK_S
            time.sleep(TICK_S)
            self._stopped_s = max(self._stopped_s, time.monotonic() - due)


STALLS = Stalls()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Measure from here on what the machine takes from the test."""
    STALLS.begin()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let pytest-rerunfailures repeat what fails while the machine stops it. A debugger stops a test as well."""
    if not config.option.usepdb:
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1, condition=STALLS.has_stalled))
