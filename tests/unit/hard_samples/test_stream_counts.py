"""Counts of the stream next to kept samples."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from halimede.hard_samples.stream_counts import StreamCounts, read_stream


def test_samples_that_are_counted_while_the_file_is_written_count_once(tmp_path: Path) -> None:
    counts, number = StreamCounts(tmp_path), 200_000

    def count() -> None:
        for i in range(number):
            counts.observe("1", i % 7 / 10, hard=False)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        counting = threading.Thread(target=count)
        counting.start()
        while counting.is_alive():
            counts.save(1.0)
        counting.join()
    finally:
        sys.setswitchinterval(before)
    counts.save(2.0)
    assert sum(each.easy for each in read_stream(tmp_path)) == number
