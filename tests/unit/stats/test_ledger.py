"""The ledger's counts outlive any death of the process, and what it held then is known as lost."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest

from halimede.errors import InvalidFieldError
from halimede.messages import Count
from halimede.stats.histogram import quantile
from halimede.stats.ledger import HEADER, SIZE, Latency, Ledger, LedgerBusyError
from tests.programs import run_python
from tests.small_disk import fill, small_disk

KILLED = """
import os, signal, sys
from pathlib import Path
from halimede.stats.ledger import *
with Ledger(Path(sys.argv[1]), "u-1") as ledger:
    ledger.add(Count.ACCEPTED, 10)
    ledger.add(Count.ANSWERED, 7)
    ledger.add(Count.CLOUD, 2)
    ledger.record(Latency.EDGE, 5.0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_counts_survive_kill_9_and_what_was_open_is_lost(tmp_path: Path) -> None:
    killed = run_python("-c", KILLED, tmp_path)
    assert killed.returncode == -signal.SIGKILL
    with Ledger(tmp_path, "u-1") as ledger:
        info = ledger.info()
        assert (info.inference_number, info.edge_inference_number, info.cloud_inference_number) == (7, 5, 2)
        assert (info.lost, ledger.open) == (3, 0)
        assert quantile(info.edge_latency, 0.5) == pytest.approx(5, abs=0.3)
        ledger.add(Count.ACCEPTED)
        ledger.add(Count.ANSWERED)
        assert ledger.info().inference_number == 8
    with Ledger(tmp_path, "u-1") as ledger:
        assert ledger.info().lost == 3


def test_what_a_clean_stop_leaves_unanswered_is_lost_too(tmp_path: Path) -> None:
    with Ledger(tmp_path, "u-1") as ledger:
        ledger.add(Count.ACCEPTED, 2)
    with Ledger(tmp_path, "u-1") as ledger:
        assert ledger.info().lost == 2


def test_the_start_is_the_first_workers_start(tmp_path: Path) -> None:
    with Ledger(tmp_path, "u-1") as ledger:
        first = ledger.info().start_time
    with Ledger(tmp_path, "u-1") as ledger:
        assert ledger.info().start_time == first
    assert first.endswith("Z")


def test_each_counter_that_is_reported_is_a_field_of_the_report(tmp_path: Path) -> None:
    with Ledger(tmp_path, "u-1") as ledger:
        for count in Count:
            ledger.add(count, count + 1)
        ledger.add(Count.ACCEPTED, 1000)
        info = ledger.info()
    reported = [count for count in Count if count.field]
    assert [getattr(info, count.field) for count in reported] == [count + 1 for count in reported]


def test_a_ledger_of_an_older_version_is_read(tmp_path: Path) -> None:
    slots = [50, 40, 10, 12, 1, 11, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19]
    content = HEADER.pack(b"HALLEDG1", b"u-1".ljust(64, b"\0"), 1_700_000_000) + struct.pack("<21Q", *slots)
    (tmp_path / "ledger").write_bytes(content.ljust(SIZE, b"\0"))
    with Ledger(tmp_path, "u-1") as ledger:
        info = ledger.info()
    assert (info.inference_number, info.cloud_inference_number, info.hard_example_number) == (40, 10, 12)
    assert (info.degraded, info.skipped, info.lost, info.rejected, info.late) == (1, 2, 50 - 40, 4, 5)
    assert (info.mining_errors, info.served, info.batches, info.unasked) == (7, 8, 9, 13)
    assert (info.uploaded_bytes, info.withheld, info.audited, info.audit_agreed) == (14, 15, 16, 17)
    assert (info.overruled, info.deferred) == (18, 19)


def test_another_services_ledger_is_set_aside(tmp_path: Path) -> None:
    with Ledger(tmp_path, "u-1") as ledger:
        ledger.add(Count.ACCEPTED, 5)
    with Ledger(tmp_path, "u-2") as ledger:
        assert ledger.info().inference_number == ledger.info().lost == 0
    assert (tmp_path / "ledger.bad").stat().st_size == SIZE


@pytest.mark.parametrize("content", [b"x", bytes(SIZE), b"\xff" * SIZE, b"HALLEDG1" + b"\xff" * (SIZE - 8)])
def test_a_damaged_ledger_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger").write_bytes(content)
    with Ledger(tmp_path, "u-1") as ledger:
        assert ledger.info().lost == 0
    assert (tmp_path / "ledger.bad").read_bytes() == content


def test_two_workers_never_share_one(tmp_path: Path) -> None:
    with Ledger(tmp_path, "u-1"), pytest.raises(LedgerBusyError, match="another worker"), Ledger(tmp_path, "u-1"):
        pass
    with Ledger(tmp_path, "u-1"):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidFieldError, match="HALIMEDE_STATE"), Ledger(tmp_path / "file" / "below", "u-1"):
        pass


def test_somebody_elses_total_is_followed_from_where_it_stands(tmp_path: Path) -> None:
    total = 5
    with Ledger(tmp_path, "u-1") as ledger:
        ledger.follow(Count.LATE, lambda: total)
        total = 8
        assert ledger.info().late == 3
        assert ledger.info().late == 3
        total = 9
    with Ledger(tmp_path, "u-1") as ledger:
        assert ledger.info().late == 4


def test_the_upload_ratio_is_the_share_of_answered_samples_that_went_up(tmp_path: Path) -> None:
    with Ledger(tmp_path, "u-1") as ledger:
        assert ledger.info().upload_cloud_ratio == 0
        ledger.add(Count.ACCEPTED, 10)
        ledger.add(Count.ANSWERED, 10)
        ledger.add(Count.UPLOADED, 2)
        ledger.record(Latency.OFFLOAD, 12.0)
        info = ledger.info()
        assert (info.upload_cloud_ratio, info.edge_latency) == (0.2, None)
        assert info.offload_latency is not None


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for uid in ("u-1", "u-2", "u-2"):
        with Ledger(tmp_path, uid):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


FULL_DISK = """
import sys
from pathlib import Path
from halimede.stats.ledger import *
disk = Path(sys.argv[1])
with Ledger(disk / "state", "u-1") as ledger:
    for _ in range(1000):
        ledger.count((Count.ACCEPTED, Count.ANSWERED))
        for i in range(1, 60):
            ledger.record(Latency.EDGE, i * i)
    assert "No space left" in ledger.trouble, ledger.trouble
    assert ledger.info().inference_number == 1000
    assert ledger.trouble
    (disk / "filling").unlink()
    ledger.info()
    assert not ledger.trouble, ledger.trouble
    ledger.count((Count.ACCEPTED, Count.ANSWERED))
    print("counted")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize("before", ["no ledger", "an older ledger without blocks"])
def test_on_a_full_disk_counts_stay_in_memory_until_there_is_space(tmp_path: Path, before: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk / "state").mkdir()
        if before == "an older ledger without blocks":
            with (disk / "state" / "ledger").open("wb") as file:
                file.truncate(SIZE)
        fill(disk / "filling")
        run = run_python("-c", FULL_DISK, disk)
        assert (run.returncode, run.stdout.splitlines()[-1:]) == (0, ["counted"]), run.stderr
        with Ledger(disk / "state", "u-1") as ledger:
            assert ledger.info().inference_number == 1001
