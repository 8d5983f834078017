"""Topics: what ``at`` builds ``parse`` reads, filters take it, and no bad name ever gets in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.bus.topic_filter import matches, split_shared
from halimede.errors import InvalidFieldError
from halimede.topic import Topic
from halimede.topics import CONTRACT
from tests.properties import examples

each_topic = pytest.mark.parametrize("topic", CONTRACT, ids=lambda topic: topic.id)
#: of each topic: there are dozens of them
few = examples(15)
labels = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?\Z")


@each_topic
@few
@given(st.data())
def test_parse_reads_what_at_built_and_filters_take_it(topic: Topic[Any], data: st.DataObject) -> None:
    names = {field: data.draw(labels) for field in topic.fields}
    text = topic.at(**names).text
    assert topic.parse(text) == names
    kept = data.draw(st.sets(st.sampled_from(topic.fields))) if topic.fields else set()
    group = data.draw(st.sampled_from(["", "g"]))
    got, plain = split_shared(topic.filter(group=group, **{field: names[field] for field in kept}).text)
    assert got == group
    assert matches(plain.split("/"), text.split("/"))


@each_topic
@few
@given(st.text(max_size=100))
def test_parse_takes_nothing_that_at_would_not_build(topic: Topic[Any], text: str) -> None:
    names = topic.parse(text)
    if names is not None:
        assert topic.at(**names).text == text


@each_topic
@few
@given(st.data())
def test_a_topic_of_the_right_form_with_a_bad_name_is_not_parsed(topic: Topic[Any], data: st.DataObject) -> None:
    if not topic.fields:
        return
    names = {field: data.draw(labels) for field in topic.fields}
    bad = data.draw(st.sampled_from(topic.fields))
    names[bad] = data.draw(st.sampled_from(["", "+", "#", "A", "a_b", "-a", "a/b", "..", "a\0", "a\n", "x" * 300]))
    assert topic.parse(topic.template.format_map(names)) is None
    for build in (topic.at, topic.filter):
        with pytest.raises(InvalidFieldError):
            build(**names)


@each_topic
def test_a_missing_or_unknown_name_is_a_mistake_in_the_code(topic: Topic[Any]) -> None:
    for build in (topic.at, topic.filter):
        with pytest.raises(TypeError):
            build(nonsense="a")


def test_no_two_topics_of_the_contract_share_an_address() -> None:
    assert len({topic.id for topic in CONTRACT}) == len(CONTRACT)
    for topic in CONTRACT:
        example = topic.at(**dict.fromkeys(topic.fields, "x")).text
        assert [other.id for other in CONTRACT if other.parse(example) is not None] == [topic.id]
