"""Tables as spreadsheets and other programs write them: a Dataset counts the rows that an evaluation reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from halimede.datasets import DatasetError, count
from halimede.datasets.registry import FileBlocks
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples, read_labelled
from halimede.messages import DatasetFacts
from tests.unit.sample_files.training import check_training

ROWS = "1,0.5,ok\n2,0.25,hot\n3,1,ok\n"
CLASSES = {"ok": 2, "hot": 1}


def table(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "data.csv"
    path.write_bytes(text.encode(encoding))
    return path


def refused_by_both(path: Path, why: str) -> None:
    with pytest.raises(DatasetError, match=why):
        count(path, "csv")
    with pytest.raises(InvalidFieldError, match=why):
        read_labelled(path)


def both(path: Path) -> tuple[DatasetFacts, LabelledSamples]:
    """Feed one file to both readers, which must agree."""
    facts, data = count(path, "csv").facts, read_labelled(path)
    assert (facts.number_of_samples, facts.number_broken) == (len(data), 0)
    if data.truths is not None:
        assert {named.name: named.count for named in facts.classes} == Counter(data.truths)
        check_training(path, data.truths)
    return facts, data


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(f"id,x,label\n{ROWS}", id="LF"),
        pytest.param(f"id,x,label\n{ROWS}".replace("\n", "\r\n"), id="CR LF"),
        pytest.param(f"id,x,label\n{ROWS}".replace("\n", "\r"), id="CR"),
        pytest.param(f"id,x,label\n{ROWS}".replace("\n", "\r", 2), id="CR and LF"),
        pytest.param(f"id,x,label\n{ROWS}".replace(",", "\t"), id="tab"),
        pytest.param(f"id,x,label\n{ROWS}".replace(",", "|"), id="bar"),
        pytest.param(f"\ufeffid,x,label\n{ROWS}", id="BOM"),
        pytest.param(f"\ufeffsep=;\r\nid,x,label\r\n{ROWS}".replace(",", ";"), id="BOM and sep=;"),
        pytest.param(f'"sep=;"\nid,x,label\n{ROWS}'.replace(",", ";"), id="quoted sep=;"),
        pytest.param(f"SEP=^\nid,x,label\n{ROWS}".replace(",", "^"), id="sep=^"),
        pytest.param(f"\n\nid,x,label\n{ROWS}\n  \n\n", id="blank lines"),
        pytest.param(f'"id";"size, in mm, of it, all";"label"\n{ROWS.replace(",", ";")}', id="commas in a quoted name"),
        pytest.param(f'id,size 5",label\n{ROWS}', id="a quote inside of a name"),
        pytest.param(f'"id","two\nlines","label"\n{ROWS}', id="a newline in a name"),
        pytest.param(f"\nlabel,id,x\n{'ok,1,0.5'}\nhot,2,0.25\nok,3,1", id="no newline at the end"),
        pytest.param(ROWS, id="no header"),
        pytest.param(f"id,x,label\n{ROWS},,\n" + '"","",""\n', id="rows of empty fields"),
        pytest.param(f"id,x,label\n{ROWS}".replace(",", ";").replace("\n", "\r\n") + ";;\r\n" * 9, id="of Excel"),
        pytest.param(f"id,x,label,,\n{ROWS}".replace("ok", "ok,,").replace("hot", "hot,,"), id="erased columns"),
        pytest.param(f"sep=;;;\nid;x;label\n{ROWS.replace(',', ';')}", id="sep=; of a sheet that was saved again"),
        pytest.param(ROWS.replace("0.5", "0,5").replace("0.25", "0,25").replace(",ok", ";ok").replace(",hot", ";hot")
                     .replace("1,0", "1;0").replace("2,0", "2;0").replace("3,1", "3;1"), id="decimal commas"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("block", [17, 64 * 1024])
def test_a_dataset_counts_the_rows_that_an_evaluation_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, block: int
) -> None:
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (block,))
    facts, data = both(table(tmp_path, content))
    assert {named.name: named.count for named in facts.classes} == CLASSES
    assert [data.image(i).tolist() for i in range(len(data))] == [[1, 0.5], [2, 0.25], [3, 1]]


def test_a_semicolon_table_with_decimal_commas(tmp_path: Path) -> None:
    """SheetJS/sheetjs#2239: `A;B;C;D` and `1,1;2,2;3,3;4,1` of Excel with a European locale."""
    _, data = both(table(tmp_path, "A;B;C;label\n1,1;2,2;3,3;a\n1,1;2,2;3,3;b\n"))
    assert data.truths == ["a", "b"]
    assert data.image(0).tolist() == pytest.approx([1.1, 2.2, 3.3])


def test_decimal_commas_in_a_name_are_no_separators(tmp_path: Path) -> None:
    _, data = both(table(tmp_path, "from 0,5 to 1,5 mm;label\n1;a\n2;b\n"))
    assert data.truths == ["a", "b"]


def test_a_cr_at_the_end_ends_a_line_if_no_lf_follows(tmp_path: Path) -> None:
    path, ledger = tmp_path / "data.txt", tmp_path / "ledger.db"
    for appended, number in ((b"a", 1), (b"\r", 1), (b"b", 2), (b"\r", 2), (b"\nc", 3)):
        with path.open("ab") as file:
            file.write(appended)
        assert count(path, "txt", ledger).facts.number_of_samples == number


def test_a_separator_that_excel_states(tmp_path: Path) -> None:
    """asafdav/ng-csv#28: exports for Excel begin with `sep=,`."""
    path = table(tmp_path, "sep=,\nx,label\n1,a\n2,a\n3,b,c\n")
    facts = count(path, "csv").facts
    assert (facts.number_of_samples, [named.name for named in facts.classes]) == (2, ["a"])
    broken = [(entry.name, entry.reason) for entry in facts.broken]
    assert broken == [("data.csv: line 5", "3 columns where the header has 2")]
    with pytest.raises(InvalidFieldError, match=r"line 5.*3 columns where the header has 2"):
        read_labelled(path)


@pytest.mark.parametrize("text", ['"x,label\n' + "1,a\n" * 50_000, 'id,"x,label\n1,"0.5",ok\n2,"0.25",hot\n'])
def test_a_quote_that_a_header_never_closes_is_named_by_both(tmp_path: Path, text: str) -> None:
    refused_by_both(table(tmp_path, text), "its header opens a quote and never closes it")


def test_a_quote_inside_of_a_field_costs_no_other_row(tmp_path: Path) -> None:
    facts = count(table(tmp_path, 'x,name,label\n1,5" disk,a\n' + "2,disk,b\n" * 700_000), "csv").facts
    assert (facts.number_of_samples, facts.number_broken) == (700_001, 0)


def test_a_header_without_any_name_has_all_its_columns(tmp_path: Path) -> None:
    assert both(table(tmp_path, "\t\n1\t2\n"))[1].image(0).tolist() == [1, 2]


def test_a_table_without_a_class_column_says_how_to_name_it(tmp_path: Path) -> None:
    _, data = both(table(tmp_path, "acid;quality\n" + "0.5;6\n0.7;5\n" * 5))
    assert data.truths is None
    assert "no column label, class, category, " in data.class_advice
    assert "name the class column label" in data.class_advice


def test_a_row_without_a_class_is_named(tmp_path: Path) -> None:
    path = table(tmp_path, "x,label\n1,a\n2,\n")
    with pytest.raises(InvalidFieldError, match=r"line 3.*it has no class"):
        read_labelled(path)


def test_rows_of_empty_fields_are_none_among_too_many_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (1024,))
    path = table(tmp_path, "x,label\n" + "".join(f"1,c{i}\n" for i in range(30_000)) + ",\n" * 40)
    assert count(path, "csv").facts.number_of_samples == 30_000


def test_a_row_without_a_class_is_a_sample_of_none(tmp_path: Path) -> None:
    facts = count(table(tmp_path, "x,label\n" + "1,a\n2,\n" * 3000), "csv").facts
    assert (facts.number_of_samples, facts.classes[0].count) == (6000, 3000)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_text_with_any_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (5,))
    path = tmp_path / "data.txt"
    path.write_bytes(end.join(["one", "two", "", "three"]).encode())
    assert count(path, "txt").facts.number_of_samples == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_utf_16_table_is_named_by_both(tmp_path: Path, encoding: str) -> None:
    refused_by_both(table(tmp_path, "x,label\n1,a\n", encoding), "is UTF-16: write it as UTF-8")
