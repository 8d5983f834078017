"""Manifests and run files of any content are read, or refused in one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.cli.broker_address import find
from halimede.cli.manifests import Manifest, ManifestError, load
from halimede.cli.output import to_yaml
from halimede.errors import HalimedeError
from tests.anything import attempt, json_values, spoiled
from tests.unit.api.test_any_resource import RESOURCES

#: what YAML gives a meaning, in any order
MARKS = "- |a: |? |&x |*x|<<: |!!python/object:os.system |!!binary |!!timestamp |{|}|[|]|>\n|---\n|...\n|%YAML 1.1\n"
MORE = (
    "\n|  |\t|'|\"|#|1e400|0x1F|2001-01-01|.nan|~|yes|\x00|\ufeff|\x85|é|kind: Model\n|apiVersion: sedna.io/v1alpha1\n"
)
yaml_texts = st.lists(st.sampled_from([*MARKS.split("|"), *MORE.split("|"), "|\n"]), max_size=14).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifests")


def read(folder: Path, content: bytes, name: str = "m.yaml") -> list[Manifest] | None:
    file = folder / name
    file.write_bytes(content)
    found, refused = attempt(load, [str(file)], refusal=ManifestError)
    assert refused is None or str(file) in str(refused)
    assert "\n" not in str(refused)
    return found


@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | yaml_texts.map(str.encode))
def test_any_content_is_no_manifest(folder: Path, content: bytes) -> None:
    assert read(folder, content) is None


@pytest.mark.parametrize("name", list(RESOURCES))
@given(data=st.data())
def test_a_spoiled_manifest_is_read_or_refused(folder: Path, name: str, data: st.DataObject) -> None:
    read(folder, json.dumps(data.draw(spoiled(RESOURCES[name]))).encode(), "m.json")


@pytest.mark.parametrize("name", list(RESOURCES))
def test_what_is_shown_as_yaml_is_read_as_it_was(folder: Path, name: str) -> None:
    (first,) = read(folder, json.dumps(RESOURCES[name]).encode()) or ()
    (again,) = read(folder, to_yaml(first.resource.body).encode()) or ()
    assert again.resource == first.resource


RUN = {"broker": "127.0.0.1:1883", "pid": 1, "nodes": ["edge0"], "started": "2026-01-01T00:00:00Z",
       "credentials": "/site/operators/admin"}  # fmt: skip
json_texts = json_values.map(lambda value: json.dumps(value).encode())
spoiled_runs = spoiled(RUN).map(lambda run: json.dumps(run).encode())


@pytest.mark.parametrize("contents", [st.binary(max_size=60) | json_texts, spoiled_runs], ids=["any", "a spoiled"])
@given(data=st.data())
def test_any_run_file_names_a_broker_or_is_refused(
    folder: Path, contents: st.SearchStrategy[bytes], data: st.DataObject
) -> None:
    content = data.draw(contents)
    (folder / "run.json").write_bytes(content)
    try:
        found = find("", {"HALIMEDE_HOME": str(folder)})
    except HalimedeError:
        return
    assert found.settings.host


def test_json_escapes_of_one_character_in_two_halves_are_read(folder: Path) -> None:
    body = {**RESOURCES["model"], "metadata": {"name": "small", "labels": {"face": "\N{GRINNING FACE}"}}}
    (found,) = read(folder, json.dumps(body).encode(), "m.json") or ()
    assert found.resource.body["metadata"]["labels"] == {"face": "\N{GRINNING FACE}"}
    assert read(folder, json.dumps(body).replace("\\ud83d", "").encode(), "m.json") is None


def test_a_kind_that_is_no_text_is_refused(folder: Path) -> None:
    for kind in ([], {}, None, 1):
        assert read(folder, json.dumps({**RESOURCES["model"], "kind": kind}).encode()) is None
