"""Names: what passes is safe in a topic, a path and a client id; what Kubernetes refuses is refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import InvalidFieldError
from halimede.names import Key, check_label, check_name

ALLOWED = set(string.ascii_lowercase + string.digits + "-.")
labels = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


@given(st.text(max_size=300))
def test_whatever_passes_holds_only_safe_characters(text: str) -> None:
    for check, limit in ((check_label, 63), (check_name, 253)):
        try:
            accepted = check("field", text)
        except InvalidFieldError:
            continue
        assert accepted == text
        assert set(text) <= ALLOWED
        assert 0 < len(text) <= limit
        assert text[0] not in "-."
        assert text[-1] not in "-."
        assert ".." not in text


@given(labels)
def test_labels_pass(text: str) -> None:
    assert check_label("field", text) == text
    assert check_name("field", text) == text


@given(st.lists(labels.filter(lambda text: len(text) < 30), min_size=1, max_size=8).map(".".join))
def test_dotted_names_pass(text: str) -> None:
    assert check_name("field", text) == text


@given(labels, labels, labels)
def test_a_key_reads_what_it_writes(plural: str, namespace: str, name: str) -> None:
    key = Key(plural, namespace, name)
    assert Key.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c/d", "a//c", "A/b/c", "a/b/../c", "default/models/m\n"])
def test_a_malformed_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError):
        Key.parse(text)


@pytest.mark.parametrize("value", [None, 7, 1.5, b"abc", ["abc"], {"abc": 1}, True])
def test_what_is_no_text_is_refused(value: object) -> None:
    for check in (check_label, check_name):
        with pytest.raises(InvalidFieldError):
            check("field", value)
