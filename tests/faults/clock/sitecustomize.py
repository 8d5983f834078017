"""Shifts the wall clock of a child process by HALIMEDE_TEST_CLOCK seconds, in all the ways that Python tells the time.

Only what is asked for on PYTHONPATH is loaded, so this reaches no other process. The monotonic clock goes on.
"""

import datetime
import os
import time

SHIFT = float(os.environ.get("HALIMEDE_TEST_CLOCK") or 0)

if SHIFT:
    _time, _time_ns, _localtime, _gmtime = time.time, time.time_ns, time.localtime, time.gmtime

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls):
            return cls.now()

    time.time = lambda: _time() + SHIFT
    time.time_ns = lambda: _time_ns() + int(SHIFT * 1e9)
    time.localtime = lambda seconds=None: _localtime(time.time() if seconds is None else seconds)
    time.gmtime = lambda seconds=None: _gmtime(time.time() if seconds is None else seconds)
    datetime.datetime = Shifted  # type: ignore[misc]
