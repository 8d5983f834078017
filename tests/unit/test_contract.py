"""The generated documents of the contract are complete, up to date and true."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgpack
import msgspec
import pytest

from halimede import api, codec, topics
from halimede.contract import asyncapi, bodies, render
from halimede.contract.examples import EXAMPLES, SERVICE, address
from halimede.errors import DecodeError
from halimede.messages import Result
from halimede.topic import BodyEncoding, Topic
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
        assert f"| [`{topic.template}`](#{topic.id}) |" in document


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
    assert {id_: channel["address"] for id_, channel in document["channels"].items()} == {
        topic.id: topic.template for topic in CONTRACT
    }
    for topic in CONTRACT:
        payload = document["components"]["messages"][topic.id]["payload"]
        jsonschema.validate(json.loads(msgspec.json.encode(EXAMPLES[topic.id])), {**document, **payload})
    assert document["operations"]["publish-camera-frame"]["action"] == "send"
    assert document["operations"]["subscribe-result"]["action"] == "receive"
    assert "publish-result" not in document["operations"], "only workers may publish results"


def test_topics_md_is_short_enough_to_read() -> None:
    assert len(render.render().encode()) <= 70_000


def test_fields_are_described_by_the_comments_above_them() -> None:
    described = {field.name: field.doc for field in bodies.fields(Result)}
    assert described["degraded"] == "hard, but answered by the edge; `reason` has the cause"
    assert f"| `degraded` | true or false | `false` | {described['degraded']} |" in render.render()
    properties = asyncapi.schema(topics.RESULT)["$defs"]["Result"]["properties"]
    assert properties["degraded"]["description"] == described["degraded"]


def test_the_example_of_a_status_is_one_that_gm_publishes() -> None:
    (condition,) = EXAMPLES[topics.STATUS.id].status.conditions
    ready = service_status.judge(service_status.ReadinessTally(active=2), [])
    assert (condition.type, condition.reason, condition.message) == (ready.phase, ready.reason, ready.message)


def test_an_example_of_a_camera_has_the_name_in_its_topic() -> None:
    for topic in (topics.CAMERA_STATUS, topics.NODE_CAMERA_STATUS):
        assert topic.parse(address(topic).text)["camera"] == EXAMPLES[topic.id].camera


@pytest.mark.parametrize("topic", [t for t in CONTRACT if t.encoding is BodyEncoding.MSGPACK], ids=lambda t: t.id)
def test_a_msgpack_example_is_shown_byte_by_byte_and_any_msgpack_library_reads_those_bytes(topic: Topic[Any]) -> None:
    shown = render.annotate(codec.encode(topic, EXAMPLES[topic.id]))
    payload = bytes.fromhex("".join(line.split("#")[0] for line in shown))
    assert payload == codec.encode(topic, EXAMPLES[topic.id])
    assert msgpack.unpackb(payload) == msgspec.msgpack.decode(payload)


def test_the_resource_in_the_examples_is_one_that_a_user_could_apply() -> None:
    assert api.parse(SERVICE).key.name == "digits"


def test_a_frame_example_holds_a_picture_that_opens() -> None:
    import io

    from PIL import Image

    assert Image.open(io.BytesIO(EXAMPLES[topics.CAMERA_FRAME.id])).size == (1, 1)


def test_a_file_that_differs_is_caught_and_the_difference_is_shown(tmp_path: Path, capsys: Any) -> None:
    assert render.main(["--write"], tmp_path) == 0
    changed = tuple(replace(t, qos=0, retain=True) if t is topics.RESULT else t for t in CONTRACT)
    (tmp_path / render.FILE).write_text(render.render(changed))
    (tmp_path / render.SCHEMAS / "gone.json").touch()
    assert render.main(["--check"], tmp_path) == 1
    shown = capsys.readouterr().err
    assert "-| [`{ns}/sedna/inference/{service}/result`](#result) | edge worker | consumer, operator | 0 |" in shown
    assert "docs/schemas/gone.json is of no topic" in shown
    assert shown.strip().endswith("run `make contract`")


def test_missing_files_are_caught_and_written_and_old_ones_removed(tmp_path: Path) -> None:
    assert render.main(["--check"], tmp_path) == 1
    assert render.main(["--write"], tmp_path) == 0
    (tmp_path / render.SCHEMAS / "gone.json").touch()
    assert render.main(["--write"], tmp_path) == 0
    assert not (tmp_path / render.SCHEMAS / "gone.json").exists()
    assert render.main(["--check"], tmp_path) == 0


def test_bytes_that_break_the_contract_of_an_example_are_refused() -> None:
    with pytest.raises(DecodeError):
        codec.decode(topics.REQUEST, codec.encode(topics.REQUEST, EXAMPLES[topics.REQUEST.id])[:-80])
