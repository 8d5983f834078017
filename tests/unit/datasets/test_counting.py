"""What has not changed is not read again, what is damaged is begun anew; a child that counts ends with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halimede.datasets import DatasetError, count, find
from halimede.datasets.count_process import CountJob, count_in_child
from halimede.datasets.count_report import Progress
from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import FileBlocks
from tests.programs import run_python
from tests.simulated import eventually


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the blocks that are read."""
    lengths: list[int] = []
    blocks = FileBlocks.blocks

    def seen(self: FileBlocks, block: int = 100, **where: Any) -> Iterator[bytes]:
        for data in blocks(self, block, **where):
            lengths.append(len(data))
            yield data

    monkeypatch.setattr(FileBlocks, "blocks", seen)
    return lengths


def samples(path: Path, form: str, ledger: Path) -> int:
    return count(path, form, ledger).facts.number_of_samples


@pytest.mark.parametrize(("form", "head"), [("txt", ""), ("csv", "x,label\n"), ("jsonl", "")])
def test_only_what_was_appended_is_read(tmp_path: Path, read: list[int], form: str, head: str) -> None:
    path, ledger = tmp_path / "data", tmp_path / "l.db"
    line = '{"label": 1}\n' if form == "jsonl" else "1,cat\n"
    path.write_text(head + line * 1000)
    assert samples(path, form, ledger) == 1000
    read.clear()
    assert samples(path, form, ledger) == 1000
    assert sum(read) == 0
    with path.open("a") as file:
        file.write(line * 10)
    assert samples(path, form, ledger) == 1010
    assert sum(read) == 10 * len(line)


@pytest.mark.parametrize("form", ["txt", "csv", "jsonl"])
def test_a_file_that_is_another_one_at_its_mark_is_read_from_the_beginning(tmp_path: Path, form: str) -> None:
    path, ledger = tmp_path / "data", tmp_path / "l.db"
    path.write_text("1\n" * 1000)
    before = samples(path, form, ledger)
    with path.open("r+") as file:  # the same file, written over and longer
        file.write("\n" + "12\n" * 800)
    assert samples(path, form, ledger) == count(path, form).facts.number_of_samples != before


def test_files_that_have_gone_and_changed_are_seen_in_a_folder(tmp_path: Path, read: list[int]) -> None:
    folder, ledger = tmp_path / "data", tmp_path / "l.db"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text("x\n" * 10)
    assert samples(folder, "txt", ledger) == 30
    read.clear()
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("y\ny\n")
    (folder / "d.txt").write_text("x\n")
    assert samples(folder, "txt", ledger) == 13
    assert sum(read) == 6


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_ledger_costs_one_count_from_the_beginning(tmp_path: Path, damage: bytes) -> None:
    path, ledger = tmp_path / "data", tmp_path / "l.db"
    path.write_text("a\nb\n")
    samples(path, "txt", ledger)
    ledger.write_bytes(damage)
    assert samples(path, "txt", ledger) == 2
    assert samples(path, "csv", ledger) == 1  # and another format is another count


def test_what_cannot_be_counted_says_why(tmp_path: Path) -> None:
    for path, form, reason in (
        (tmp_path / "gone", "txt", "DatasetNotFound"),
        (Path("/dev/null"), "txt", "DatasetUnreadable"),
        (tmp_path, "hdf5", "UnsupportedFormat"),
    ):
        with pytest.raises(DatasetError) as raised:
            count(path, form)
        assert raised.value.reason == reason
    assert type(find("Pascal_VOC")) is type(find("XML")) is type(find("voc"))


def test_broken_entries_and_classes_are_bounded() -> None:
    tally = DatasetCounts()
    for number in range(100):
        tally.record_fault(f"line {number}", "x" * 10_000)
    tally.add_classes({f"class {number}": 1 for number in range(5000)})
    facts = tally.facts(1)
    assert (facts.number_broken, len(facts.broken)) == (100, 20)
    assert (len(facts.classes), facts.number_of_classes) == (1000, 5000)
    assert [each.name for each in facts.broken][8:11] == ["line 8", "line 9", "line 10"]
    tally.add_classes({f"more {number}": 1 for number in range(6000)})
    assert tally.facts(1).number_of_classes == 0


async def test_a_child_counts_and_says_why_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,label\n1,a\n2,b\n")
    counted = await count_in_child(CountJob(path, "csv", tmp_path / "l.db"), lambda _: None)
    assert counted.facts.number_of_samples == 2
    assert list(counted.watch) == [str(path)]
    with pytest.raises(DatasetError, match="does not exist on this node") as raised:
        await count_in_child(CountJob(tmp_path / "gone", "csv"), lambda _: None)
    assert raised.value.reason == "DatasetNotFound"


def _large(path: Path) -> Path:
    """Gigabytes that take no place: none of its lines has anything in it."""
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return path


async def test_a_count_that_is_not_wanted_any_more_ends(tmp_path: Path) -> None:
    told: list[Progress] = []
    task = asyncio.create_task(count_in_child(CountJob(_large(tmp_path / "data"), "txt"), told.append))
    await eventually(lambda: told, 30)
    assert told[0].total == 1 << 40
    child = next(pid for pid, line in _processes() if str(tmp_path) in line)
    task.cancel()
    await asyncio.wait([task])
    assert not Path(f"/proc/{child}").exists()


async def test_a_count_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from halimede.datasets.count_process import *\n"
        "asyncio.run(count_in_child(CountJob(Path(sys.argv[1]), 'txt'), lambda _: print('told', flush=True)))"
    )
    path = _large(tmp_path / "data")
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as parent:
        await asyncio.to_thread(parent.stdout.readline)
        child = next(pid for pid, line in _processes() if str(path) in line and "--parent" in line)
        os.kill(parent.pid, signal.SIGKILL)
    await eventually(lambda: not _alive(child), 30)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _processes() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue


def test_a_process_that_counts_starts_without_an_event_loop_numpy_and_readers_of_other_formats() -> None:
    unneeded = {"asyncio", "numpy", "PIL", "pyarrow", "halimede.sample_files.coco"}
    code = f"import sys, halimede.datasets.__main__; print(*{unneeded} & {{*sys.modules}})"
    assert run_python("-c", code, check=True).stdout.split() == []


async def test_a_count_that_takes_too_much_memory_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import halimede.datasets.lines as t\ndef read(*a): return bytearray(1 << 30)\nt.TextLines.read = read\n"
    )
    path = tmp_path / "data.txt"
    path.write_text("a\n")
    with pytest.raises(DatasetError, match="takes over 256 MiB of memory"):
        await count_in_child(CountJob(path, "txt"), lambda _: None)


async def test_a_count_without_progress_fails_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("halimede.datasets.count_process.STALL_TIMEOUT_S", 2.0)
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nimport halimede.datasets.lines as t\nt.TextLines.read = lambda *a: time.sleep(600)\n"
    )
    path = tmp_path / "data.txt"
    path.write_text("a\n")
    with pytest.raises(DatasetError, match="no progress for 2 s: check the disk or network mount") as raised:
        await count_in_child(CountJob(path, "txt"), lambda _: None)
    assert raised.value.reason == "DatasetUnreadable"
    assert not [line for _, line in _processes() if str(path) in line]


def parquet(path: Path, **columns: list[Any]) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table(columns), path, row_group_size=100)
    return path


def test_parquet_has_its_rows_and_the_classes_of_its_column(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", label=["cat", "dog", None, "cat"] * 250, x=[0.5] * 1000)
    facts = count(path, "parquet").facts
    assert facts.number_of_samples == 1000
    assert {each.name: each.count for each in facts.classes} == {"cat": 500, "dog": 250}
    parquet(tmp_path / "b.parquet", x=[0.5] * 10)
    (tmp_path / "c.parquet").write_bytes(b"PAR1 but no more than that")
    facts = count(tmp_path, "parquet").facts
    assert (facts.number_of_samples, [each.name for each in facts.broken]) == (1010, ["c.parquet"])


def test_parquet_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match=r"install halimede\[datasets\]"):
        count(tmp_path, "parquet")
