"""txt and jsonl against references that read everything at once, whatever is in the lines and wherever blocks end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.datasets import DatasetError
from halimede.datasets.registry import FileBlocks
from tests.properties import examples
from tests.unit.datasets.counted import classes, facts

LINES = st.lists(
    st.sampled_from(["", " ", "\t\r", "a", "a.jpg 1", "b.jpg 0", " c.jpg", "\u00e9\u20ac", "\v.\f"]), max_size=40
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks end in the middle of lines."""
    monkeypatch.setattr(FileBlocks.blocks, "__defaults__", (7,))


@examples(100)
@given(LINES, st.booleans())
def test_txt_has_a_sample_for_each_line_with_something_in_it(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ended: bool
) -> None:
    path = tmp_path_factory.mktemp("txt") / "list.txt"
    path.write_bytes(("\n".join(lines) + "\n" * ended).encode())
    # bytes.strip: what is white space in ASCII
    assert facts(path, "txt").number_of_samples == sum(bool(line.encode().strip()) for line in lines)


@examples(100)
@given(st.lists(LINES, max_size=4), st.sampled_from(["txt", "jsonl"]))
def test_what_is_appended_is_counted_as_if_all_were_counted_anew(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], form: str
) -> None:
    folder = tmp_path_factory.mktemp("grows")
    path, ledger = folder / "list", folder / "ledger.db"
    path.touch()
    for part in parts:
        with path.open("ab") as file:  # the last line has no end, the next part goes on with it
            file.write("\n".join(part).encode())
        said, anew = facts(path, form, ledger), facts(path, form)
        assert (said.number_of_samples, said.number_broken) == (anew.number_of_samples, anew.number_broken)
        assert said.broken == anew.broken


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


FIELDS = st.dictionaries(st.sampled_from(["x", "y", "label_"]), JSON, max_size=3)
LABEL = st.just({}) | st.sampled_from(["cat", "d\u00f6g", 3, None]).map(lambda label: {"label": label})
ENTRIES = st.builds(lambda fields, label: fields | label, FIELDS, LABEL) | st.sampled_from(["{", "nope", ""])


@examples(80)
@given(st.lists(ENTRIES, max_size=20))
def test_jsonl_counts_samples_and_classes_and_names_lines_that_are_no_json(
    tmp_path_factory: pytest.TempPathFactory, entries: list[object]
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "data.jsonl"
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("".join(f"{line}\n" for line in lines))
    good = [entry for entry in entries if isinstance(entry, dict)]
    bad = [number for number, line in enumerate(lines, 1) if line in {"{", "nope"}]
    said = facts(path, "jsonl")
    assert said.number_of_samples == len(good)
    assert classes(said) == Counter(str(e["label"]) for e in good if e.get("label") is not None)
    assert [each.name for each in said.broken] == [f"data.jsonl: line {number}" for number in bad][:20]


def test_a_line_without_end_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.datasets.lines.MAX_LINE", 100)
    path = tmp_path / "data.jsonl"
    path.write_text('{"label": 1}\n' + "x" * 5000 + '\n{"label": 2}\n')
    said = facts(path, "jsonl")
    assert (said.number_of_samples, said.broken[0].name) == (2, "data.jsonl: line 2")
    assert classes(said) == {"1": 1, "2": 1}


def test_utf_16_is_refused_rather_than_counted_wrong(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("a\nb\n", encoding="utf-16")
    with pytest.raises(DatasetError, match="UTF-16: write it as UTF-8"):
        facts(path, "txt")
