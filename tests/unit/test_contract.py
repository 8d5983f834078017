"""topics.md says what the code does: generated, complete, with examples that hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import msgpack
import msgspec
import pytest

from halimede import api, codec, topics
from halimede.contract import render
from halimede.contract.examples import EXAMPLES, SERVICE, address
from halimede.errors import DecodeError
from halimede.topic import BodyEncoding, Topic
from halimede.topics import CONTRACT

every_topic = pytest.mark.parametrize("topic", CONTRACT, ids=lambda topic: topic.id)


def test_topics_md_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.main(["--check"]) == 0, capsys.readouterr().err


def test_every_topic_has_one_example_and_one_section() -> None:
    assert sorted(EXAMPLES) == sorted(topic.id for topic in CONTRACT)
    document = render.render()
    for topic in CONTRACT:
        assert document.count(f"\n## {topic.id}\n") == 1
        assert f"| [`{topic.template}`](#{topic.id}) |" in document


@every_topic
def test_an_example_survives_encoding_and_decoding(topic: Topic[Any]) -> None:
    body = EXAMPLES[topic.id]
    assert codec.decode(topic, codec.encode(topic, body)) == body
    assert topic.parse(address(topic).text) is not None


@every_topic
def test_an_example_fits_the_schema_beside_it(topic: Topic[Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(render.schema(topic))
    plain = json.loads(msgspec.json.encode(EXAMPLES[topic.id]))
    jsonschema.validate(plain, render.schema(topic))


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


def test_a_changed_contract_is_caught_and_the_difference_is_shown(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "topics.md"
    changed = tuple(replace(t, qos=0, retain=True) if t is topics.RESULT else t for t in CONTRACT)
    file.write_text(render.render(changed))
    assert render.main(["--check"], file) == 1
    said = capsys.readouterr().err
    assert "+- QoS 1; JSON: Result" in said
    assert said.strip().endswith("run `make contract`")


def test_a_missing_topics_md_is_caught_and_written(tmp_path: Any) -> None:
    file = tmp_path / "topics.md"
    assert render.main(["--check"], file) == 1
    assert render.main(["--write"], file) == 0
    assert render.main(["--check"], file) == 0


def test_bytes_that_break_the_contract_of_an_example_are_refused() -> None:
    with pytest.raises(DecodeError):
        codec.decode(topics.REQUEST, codec.encode(topics.REQUEST, EXAMPLES[topics.REQUEST.id])[:-80])
