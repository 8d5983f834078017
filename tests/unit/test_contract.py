"""The generated documents of the contract are complete, up to date and true."""

from __future__ import annotations

import functools
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from PIL import Image

from halimede import api, codec, topics
from halimede.contract import asyncapi, bodies, render
from halimede.contract.examples import EXAMPLES, SERVICE, address
from halimede.messages import Result
from halimede.topic import Topic
from halimede.topics import CONTRACT
from services.gm import service_status

made_once = functools.cache(render.files)
every_topic = pytest.mark.parametrize("topic", CONTRACT, ids=lambda topic: topic.id)


@pytest.fixture(autouse=True)
def _files_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making all files takes seconds."""
    monkeypatch.setattr(render, "files", made_once)


def test_the_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.main(["--check"]) == 0, capsys.readouterr().err


def test_every_topic_has_one_example_and_one_section() -> None:
    assert sorted(EXAMPLES) == sorted(topic.id for topic in CONTRACT)
    document = render.render()
    for topic in CONTRACT:
        assert document.count(f"\n### {topic.id}\n") == 1
        assert f"|[`{topic.template}`](#{topic.id})|" in document


def test_every_type_that_a_body_has_is_described_once_and_every_link_has_a_heading() -> None:
    document = render.render()
    headings = [heading.lower() for heading in re.findall(r"^### (.+)$", document, re.MULTILINE)]
    assert len(headings) == len(set(headings))
    assert set(re.findall(r"\]\(#(.+?)\)", document)) <= set(headings)
    for kind in bodies.message_types(topic.message for topic in CONTRACT):
        assert all(f"`{field.name}`" in document for field in bodies.fields(kind)), kind


@every_topic
def test_an_example_survives_encoding_and_decoding(topic: Topic[Any]) -> None:
    body = EXAMPLES[topic.id]
    assert codec.decode(topic, codec.encode(topic, body)) == body
    assert topic.parse(address(topic).text) is not None


@every_topic
def test_an_example_fits_the_schema_beside_it(topic: Topic[Any]) -> None:
    schema = asyncapi.schema(topic)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(msgspec.json.encode(EXAMPLES[topic.id])), schema)


def test_asyncapi_has_every_topic_with_its_schema_and_what_clients_may_do() -> None:
    document = asyncapi.document(CONTRACT)
    addresses = {id_: channel["address"] for id_, channel in document["channels"].items()}
    assert addresses == {topic.id: topic.template for topic in CONTRACT}
    for topic in CONTRACT:
        payload = document["components"]["messages"][topic.id]["payload"]
        jsonschema.validate(json.loads(msgspec.json.encode(EXAMPLES[topic.id])), {**document, **payload})
    assert document["operations"]["publish-camera-frame"]["action"] == "send"
    assert document["operations"]["subscribe-result"]["action"] == "receive"
    assert "publish-result" not in document["operations"], "only workers may publish results"


def test_topics_md_is_short_enough_to_read() -> None:
    assert len(render.render().encode()) <= 40_000 + 500 * max(0, len(CONTRACT) - 46)


def test_fields_are_described_by_the_comments_above_them() -> None:
    described = {field.name: field.doc for field in bodies.fields(Result)}
    assert described["degraded"] == "hard, but answered by the edge; `reason` has the cause"
    assert f"- `degraded` (boolean): {described['degraded']}" in render.render()
    properties = asyncapi.schema(topics.RESULT)["$defs"]["Result"]["properties"]
    assert properties["degraded"]["description"] == described["degraded"]


def test_the_example_of_a_status_is_one_that_gm_publishes() -> None:
    (condition,) = EXAMPLES[topics.STATUS.id].status.conditions
    ready = service_status.judge(service_status.ReadinessTally(active=2), [])
    assert (condition.type, condition.reason, condition.message) == (ready.phase, ready.reason, ready.message)


def test_an_example_of_a_camera_has_the_name_in_its_topic() -> None:
    for topic in (topics.CAMERA_STATUS, topics.NODE_CAMERA_STATUS):
        assert topic.parse(address(topic).text)["camera"] == EXAMPLES[topic.id].camera


def test_the_resource_in_the_examples_is_one_that_a_user_could_apply() -> None:
    assert api.parse(SERVICE).key.name == "digits"


def test_a_frame_example_holds_a_picture_that_opens() -> None:
    assert Image.open(io.BytesIO(EXAMPLES[topics.CAMERA_FRAME.id])).size == (1, 1)


def test_files_that_are_missing_or_differ_are_caught_and_the_difference_is_shown(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [render.main([option], tmp_path) for option in ("--check", "--write", "--check")] == [1, 0, 0]
    changed = tuple(replace(t, qos=0, retain=True) if t is topics.RESULT else t for t in CONTRACT)
    with monkeypatch.context() as patch:
        patch.setattr(render, "CONTRACT", changed)
        (tmp_path / render.TOPICS).write_text(render.render())
    assert render.main(["--check"], tmp_path) == 1
    shown = capsys.readouterr().err
    assert (
        "-|[`{ns}/sedna/inference/{service}/result`](#result)|edge worker|edge worker, consumer, operator|0|" in shown
    )
    assert shown.strip().endswith("run `make contract`")


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        render.main(["--schemas", str(tmp_path / "file")])
    assert f"--schemas: {tmp_path / 'file'} cannot be written" in capsys.readouterr().err


def test_schemas_of_all_bodies_are_written_into_a_folder(tmp_path: Path) -> None:
    assert render.main(["--schemas", str(tmp_path / "new")]) == 0
    written = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "new").iterdir()}
    assert written.keys() == EXAMPLES.keys()
    for topic in CONTRACT:
        (example,) = written[topic.id].pop("examples")
        assert example == json.loads(msgspec.json.encode(EXAMPLES[topic.id]))
        assert written[topic.id] == asyncapi.schema(topic)
