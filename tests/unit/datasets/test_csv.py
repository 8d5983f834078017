"""csv against Python's own reader, with quotes, newlines in quotes, blank and ragged rows, in blocks of any length."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.datasets import count, csv_
from halimede.datasets.registry import FileBlocks
from halimede.messages import DatasetFacts

VALUES = st.sampled_from(["", "1", "0.5", "cat", "dog", "a,b", "a\nb", 'say "x"', '"', " s ", "\u00e9"])
LABELS = st.sampled_from(["cat", "dog", "a,b", 'say "x"', "two\nlines", "\u00e9"])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and halves of few bytes: rows end anywhere."""
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (61,))
    monkeypatch.setattr(csv_, "SMALL", 16)


def facts(path: Path, ledger: Path | None = None) -> DatasetFacts:
    return count(path, "csv", ledger).facts


def classes(of: DatasetFacts) -> dict[str, int]:
    return {each.name: each.count for each in of.classes}


def written(rows: list[list[str]], quoting: int, end: str = "\n") -> str:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows(rows)  # type: ignore[arg-type]
    return text.getvalue()


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(VALUES, VALUES, LABELS), max_size=30),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.permutations(["x", "y", "label"]),
)
def test_rows_and_classes_are_those_of_pythons_reader(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, str]],
    quoting: int,
    end: str,
    names: list[str],
) -> None:
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    by_name = [dict(zip(("x", "y", "label"), row, strict=True)) for row in rows]
    path.write_bytes(written([names, *([row[n] for n in names] for row in by_name)], quoting, end).encode())
    said = facts(path)
    assert (said.number_of_samples, said.number_broken) == (len(rows), 0)
    assert classes(said) == Counter(row["label"] for row in by_name)


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet='ab,"\n \r', max_size=120))
def test_whatever_stands_there_is_read_as_pythons_reader_does(
    tmp_path_factory: pytest.TempPathFactory, body: str
) -> None:
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


@settings(max_examples=60, deadline=None)
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
    path = tmp_path / "data.csv"
    path.write_text('x,label\n1,a\n"2\n2",b\n3\n\n4,a,zz\n5,b\n')
    said = facts(path)
    assert said.number_of_samples == 3
    assert [(each.name, each.reason) for each in said.broken] == [
        ("data.csv: line 5", "1 columns where the header has 2"),
        ("data.csv: line 7", "3 columns where the header has 2"),
    ]


def test_a_quote_that_is_never_closed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('x,label\n1,a\n"2,b\n3,a\n')
    said = facts(path)
    assert said.number_of_samples == 1
    assert said.broken[0].name == "data.csv: line 3"
    assert "never closed" in said.broken[0].reason


@pytest.mark.parametrize("sep", [";", "\t", "|"])
def test_other_separators_are_found_in_the_header(tmp_path: Path, sep: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"x{sep}class\n1,5{sep}a\n2{sep}a\n")
    assert classes(facts(path)) == {"a": 2}


def test_the_last_column_is_the_class_only_if_it_has_few_values(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "".join(f"{n},{n % 3}\n" for n in range(3000)))
    assert classes(facts(path)) == {"0": 1000, "1": 1000, "2": 1000}
    path.write_text("a,b\n" + "".join(f"{n % 3},{n}\n" for n in range(30_000)))
    said = facts(path)
    assert (said.number_of_samples, said.classes, said.number_of_classes) == (30_000, [], 0)


def test_one_column_and_no_row_are_tables_too(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("label\na\n\nb\na\n")
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
    path = tmp_path / "data.csv"
    path.write_text("x,label\n" + "1,a\n" * 50 + '"two\nlines",b\n' * 50 + "3\n")
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
