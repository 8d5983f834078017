"""Counts of the stream next to kept samples."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

import pytest

from halimede.hard_samples import stream_counts
from halimede.hard_samples.stream_counts import MAX_BYTES, StreamCounts, StreamInterval, read_stream


def test_samples_that_are_counted_while_the_file_is_written_count_once(tmp_path: Path) -> None:
    counts, number = StreamCounts(tmp_path), 200_000

    def count() -> None:
        for i in range(number):
            counts.observe("1", i % 7 / 10, float(i), hard=False)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        counting = threading.Thread(target=count)
        counting.start()
        while counting.is_alive():
            counts.save()
        counting.join()
    finally:
        sys.setswitchinterval(before)
    counts.save()
    assert sum(each.easy for each in read_stream(tmp_path)) == number


def test_an_interval_has_the_times_of_its_first_and_its_last_sample(tmp_path: Path) -> None:
    counts = StreamCounts(tmp_path)
    for at_s in (101.0, 104.0, 109.0):
        counts.observe("1", 0.1, at_s, hard=at_s > 105)
    counts.observe("1", 0.5, 110.0, hard=False)
    counts.save()
    counts.observe("1", 0.5, 111.0, hard=True)
    counts.save()
    found = [(each.audit_share, each.began_s, each.until_s, each.hard, each.easy) for each in read_stream(tmp_path)]
    assert found == [(0.1, 101.0, 109.0, 1, 2), (0.5, 110.0, 110.0, 0, 1), (0.5, 111.0, 111.0, 1, 0)]


def test_samples_that_the_disk_refuses_are_saved_later_with_their_times(tmp_path: Path) -> None:
    counts = StreamCounts(tmp_path / "hard")
    (tmp_path / "hard").write_text("no folder")
    counts.observe("1", 0.1, 101.0, hard=True)
    counts.observe("2", 0.1, 102.0, hard=True)
    with pytest.raises(OSError, match="exists"):
        counts.save()
    (tmp_path / "hard").unlink()
    counts.observe("1", 0.1, 103.0, hard=False)
    counts.save()
    found = [
        (each.version, each.began_s, each.until_s, each.hard, each.easy) for each in read_stream(tmp_path / "hard")
    ]
    assert sorted(found) == [("1", 101.0, 103.0, 1, 1), ("2", 102.0, 102.0, 1, 0)]


def test_counts_in_a_file_that_cannot_be_halved_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("the disk is full")

    counts = StreamCounts(tmp_path)
    counts.observe("1", 0.1, 101.0, hard=True)
    monkeypatch.setattr(stream_counts, "MAX_BYTES", 1)
    monkeypatch.setattr(stream_counts, "write_atomic", refuse)
    for _ in range(2):
        with contextlib.suppress(OSError):
            counts.save()
    assert sum(interval.hard for interval in read_stream(tmp_path)) == 1


@pytest.mark.parametrize(("since_s", "share"), [(99.0, 1.0), (100.0, 1.0), (107.5, 0.25), (110.0, 0.0), (111.0, 0.0)])
def test_an_interval_in_which_a_round_begins_counts_for_the_time_since_then(since_s: float, share: float) -> None:
    assert StreamInterval(began_s=100.0, until_s=110.0).share_since(since_s) == share


def test_an_interval_of_an_earlier_release_counts_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "stream.jsonl").write_text('{"untilS":110.0,"version":"1","auditShare":0.1,"hard":3,"easy":7}\n')
    (found,) = read_stream(tmp_path)
    assert (found.hard, found.easy, found.share_since(109.0), found.share_since(111.0)) == (3, 7, 1.0, 0.0)


def test_counts_stay_until_their_file_is_full_and_then_the_newer_half_of_them(tmp_path: Path) -> None:
    counts = StreamCounts(tmp_path)
    for second in range(3):
        counts.observe("1", 0.1, float(second), hard=True)
        counts.save()
    assert [each.began_s for each in read_stream(tmp_path)] == [0.0, 1.0, 2.0]
    one = b'{"beganS":%d.0,"untilS":%d.0,"version":"1","auditShare":0.1,"hard":1,"easy":0}\n'
    count = MAX_BYTES // len(one % (100_000, 100_000)) + 1
    (tmp_path / "stream.jsonl").write_bytes(b"".join(one % (n, n) for n in range(100_000, 100_000 + count)))
    counts.observe("1", 0.1, 999_999.0, hard=True)
    counts.save()
    found = [each.began_s for each in read_stream(tmp_path)]
    assert found == [*range(100_000 + count - len(found) + 1, 100_000 + count), 999_999]
    assert len(found) == pytest.approx(count / 2, abs=2)
