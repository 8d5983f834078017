"""csv against Python's own reader, with quotes, newlines in quotes, blank and ragged rows, in blocks of any length."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.datasets import csv_
from halimede.datasets.registry import FileBlocks
from halimede.datasets.row_ends import MAX_COLUMNS, ROWS, count_ends, is_faster
from halimede.messages import DatasetFacts
from tests.properties import examples
from tests.unit.datasets.counted import broken, classes
from tests.unit.datasets.counted import facts as of_form

VALUES = st.sampled_from(["", "1", "0.5", "cat", "dog", "a,b", "a\nb", 'say "x"', '"', " s ", "\u00e9"])
LABELS = st.sampled_from(["cat", "dog", "a,b", 'say "x"', "two\nlines", "\u00e9"])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and halves of few bytes: rows end anywhere."""
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (61,))
    monkeypatch.setattr(csv_, "MIN_HALVED_BYTES", 16)


def table(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text)
    return path


def facts(path: Path, ledger: Path | None = None) -> DatasetFacts:
    return of_form(path, "csv", ledger)


def written(rows: list[list[str]], quoting: int, end: str = "\n") -> str:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows(rows)  # type: ignore[arg-type]
    return text.getvalue()


@examples(120)
@given(
    st.lists(st.tuples(VALUES, VALUES, LABELS), max_size=30),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.permutations(["x", "y", "label"]),
)
def test_rows_and_classes_are_those_of_pythons_reader(
    tmp_path_factory: Any, rows: list[tuple[str, str, str]], quoting: int, end: str, names: list[str]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    by_name = [dict(zip(("x", "y", "label"), row, strict=True)) for row in rows]
    path.write_bytes(written([names, *([row[n] for n in names] for row in by_name)], quoting, end).encode())
    said = facts(path)
    assert (said.number_of_samples, said.number_broken) == (len(rows), 0)
    assert classes(said) == Counter(row["label"] for row in by_name)


@examples(120)
@given(st.text(alphabet='ab,"\n \r', max_size=120))
def test_whatever_is_there_is_read_as_pythons_reader_does(tmp_path_factory: pytest.TempPathFactory, body: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    body = body.replace("\r", "") + ("\n" if body.count('"') % 2 == 0 else "")
    path.write_bytes(f"x,y\n{body}".encode())
    lines = io.StringIO(f"x,y\n{body}", newline="\n")
    rows = [row for row in csv.reader(lines)][1:]  # noqa: C416  # the reader itself has no len
    good = sum(len(row) == 2 and any(row) for row in rows)
    said = facts(path)
    if any("never closed" in each.reason for each in said.broken):
        assert body.count('"')
        return
    assert said.number_of_samples == good


@examples(60)
@given(st.lists(st.tuples(VALUES, LABELS), min_size=1, max_size=30), st.data())
def test_rows_that_are_appended_are_counted_as_if_all_were_counted_anew(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    path, ledger = folder / "data.csv", folder / "ledger.db"
    whole = written([["x", "label"], *map(list, rows)], csv.QUOTE_MINIMAL).encode()
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))), len(whole)]:
        path.write_bytes(path.read_bytes() + whole[path.stat().st_size : cut] if path.exists() else whole[:cut])
        facts(path, ledger)
    said = facts(path, ledger)
    assert (said.number_of_samples, classes(said)) == (len(rows), Counter(label for _, label in rows))


def test_rows_of_another_width_are_named_with_their_line(tmp_path: Path) -> None:
    said = facts(table(tmp_path, 'x,label\n1,a\n"2\n2",b\n3\n\n4,a,zz\n5,b\n'))
    assert said.number_of_samples == 3
    narrow, wide = (f"{width} columns where the header has 2" for width in (1, 3))
    assert broken(said) == {"data.csv: line 5": narrow, "data.csv: line 7": wide}


def test_a_quote_that_is_never_closed_is_named(tmp_path: Path) -> None:
    said = facts(table(tmp_path, 'x,label\n1,a\n"2,b\n3,a\n'))
    assert (said.number_of_samples, said.broken[0].name) == (1, "data.csv: line 3")
    assert "never closed" in said.broken[0].reason


@pytest.mark.parametrize("sep", [";", "\t", "|"])
def test_other_separators_are_found_in_the_header(tmp_path: Path, sep: str) -> None:
    assert classes(facts(table(tmp_path, f"x{sep}class\n1,5{sep}a\n2{sep}a\n"))) == {"a": 2}


def test_the_last_column_is_the_class_only_if_it_has_few_values(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b\n" + "".join(f"{n},{n % 3}\n" for n in range(3000)))
    assert classes(facts(path)) == {"0": 1000, "1": 1000, "2": 1000}
    path.write_text("a,b\n" + "".join(f"{n % 3},{n}\n" for n in range(30_000)))
    said = facts(path)
    assert (said.number_of_samples, said.classes, said.number_of_classes) == (30_000, [], 0)


def test_one_column_and_no_row_are_tables_too(tmp_path: Path) -> None:
    path = table(tmp_path, "label\na\n\nb\na\n")
    assert classes(facts(path)) == {"a": 2, "b": 1}
    for text in ("", "\n", "x,label", "x,label\n"):
        path.write_text(text)
        assert facts(path).number_of_samples == 0


@pytest.mark.parametrize("names", ["label,x,y", "x,label,y", "x,y,label"])
def test_regular_rows_are_not_read_one_by_one_wherever_their_class_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    path = tmp_path / "data.csv"
    rows = [{"x": str(n), "y": "0.5", "label": f"c{n % 9}"} for n in range(90)]
    path.write_text(f"{names}\n" + "".join(",".join(row[n] for n in names.split(",")) + "\n" for row in rows))
    monkeypatch.setattr(csv_, "whole_rows", lambda *_: pytest.fail("a regular row is read alone"))
    assert classes(facts(path)) == {f"c{n}": 10 for n in range(9)}


def test_lines_are_named_right_behind_blocks_that_are_counted_at_once(tmp_path: Path) -> None:
    path = table(tmp_path, "x,label\n" + "1,a\n" * 50 + '"two\nlines",b\n' * 50 + "3\n")
    counted = facts(path)
    assert (counted.number_of_samples, [entry.name for entry in counted.broken]) == (100, ["data.csv: line 152"])


def test_a_class_with_the_separator_inside_is_not_counted_where_two_columns_look_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.csv"
    irregular = 'odd"1,1,"a,b"\n' * 4 + 'odd"2,1,b\n' * 2  # a quote inside of a field: these rows are read one by one
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (len(irregular),))
    path.write_text("x,y,label\n" + irregular + "1,a,b\n1,z,new\n")
    assert classes(facts(path)) == {"a,b": 4, "b": 3, "new": 1}


LAST_FIELDS = tuple(b"cat|hat|at|t||\0|\0\0|dog\r|d;g|\xc3\xa9|0|10|110".split(b"|"))


def drawn_rows(number: int) -> list[bytes]:
    draw = random.Random(7)
    firsts = (b"", b"cat", b"9,at", b"\0,", b"x" * 40)
    return [draw.choice(firsts) + b"," + draw.choice(LAST_FIELDS) for _ in range(number)]


@pytest.mark.parametrize("number", [1, ROWS - 1, ROWS, 3 * ROWS + 1])
@pytest.mark.parametrize("number_known", [1, 5, 8, 9, len(LAST_FIELDS)])
def test_rows_are_counted_by_their_last_field(number: int, number_known: int) -> None:
    rows = drawn_rows(number)
    plain = Counter(row.rpartition(b",")[2] for row in rows)
    counts = count_ends(b"".join(row + b"\n" for row in rows), b",", LAST_FIELDS[:number_known])
    assert counts == {value: plain[value] for value in LAST_FIELDS[:number_known]}


def test_values_that_take_more_columns_than_splitting_is_worth_do_not_fit() -> None:
    assert is_faster((b"x" * (MAX_COLUMNS - 1),) * 8)
    assert not is_faster((b"x" * MAX_COLUMNS,))
    assert not is_faster((b"x" * (MAX_COLUMNS // 2),) * 9)
