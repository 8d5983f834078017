"""Where was this one seen? By identity, by features, by camera and time."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede import codec, topics
from halimede.inference import pack
from halimede.messages import IdentityAnswer, IdentityQuery
from halimede.multiedge.reid import Matcher
from tests.unit.multiedge.reid.scene import NOON_NS, finding, looks, matcher, who

A, B, C = looks(3)
NOON = NOON_NS / 1e9


@pytest.fixture
def lobby(tmp_path: Path) -> tuple[Matcher, str, str]:
    """A at the door every ten seconds, then in the yard; B at the door in between."""
    decides = matcher(tmp_path)
    for number in range(6):
        camera = "door" if number < 4 else "yard"
        seen = finding(A, [(50, 50)], camera=camera, number=number, ms=10_000 * number)
        (a,) = who(decides.take([seen], 10.0 * number))
    (b,) = who(decides.take([finding(B, [(90, 90)], number=9, ms=15_000)], 51.0))
    assert a is not None
    assert b is not None
    return decides, a, b


def asked(decides: Matcher, **query: object) -> IdentityAnswer:
    answer = decides.ask(IdentityQuery(**query))  # type: ignore[arg-type]
    assert codec.decode(topics.IDENTITY_ANSWER, codec.encode(topics.IDENTITY_ANSWER, answer)) == answer
    return answer


def test_by_identity_the_latest_first(lobby: tuple[Matcher, str, str]) -> None:
    decides, a, _ = lobby
    (one,) = asked(decides, identity=a).identities
    assert (one.identity, one.count, one.cameras, one.first, one.last) == (a, 6, ["door", "yard"], NOON, NOON + 50)
    assert [seen.time - NOON for seen in one.sightings] == [50, 40, 30, 20, 10, 0]
    (one,) = asked(decides, identity=a, limit=2).identities
    assert [seen.time - NOON for seen in one.sightings] == [50, 40]


def test_by_camera_and_time(lobby: tuple[Matcher, str, str]) -> None:
    decides, a, b = lobby
    (one,) = asked(decides, identity=a, camera="yard").identities
    assert len(one.sightings) == 2
    (one,) = asked(decides, identity=a, since=NOON + 10, until=NOON + 30).identities
    assert [seen.time - NOON for seen in one.sightings] == [30, 20, 10]
    assert [one.identity for one in asked(decides, camera="door").identities] == [a, b]
    assert [one.identity for one in asked(decides, since=NOON + 14, until=NOON + 16).identities] == [b]
    assert [one.identity for one in asked(decides).identities] == [a, b]
    assert [one.identity for one in asked(decides, limit=1).identities] == [a]
    assert not asked(decides, camera="roof").identities


def test_what_was_seen_this_moment_is_in_the_answer(lobby: tuple[Matcher, str, str]) -> None:
    decides, a, _ = lobby
    decides.take([finding(A, [(50, 50)], camera="gate", number=7, ms=60_000)], 60.0)
    (one,) = asked(decides, camera="gate").identities
    assert one.identity == a


def test_by_features_the_most_alike_first(lobby: tuple[Matcher, str, str]) -> None:
    decides, a, b = lobby
    first, second = asked(decides, embedding=pack(B + 0.3 * A)).identities
    assert [first.identity, second.identity] == [b, a]
    assert first.similarity is not None
    assert second.similarity is not None
    assert first.similarity > 0.9 > second.similarity
    assert [one.identity for one in asked(decides, embedding=pack(B), camera="yard").identities] == [a]


def test_what_cannot_be_answered_says_why(lobby: tuple[Matcher, str, str]) -> None:
    decides, *_ = lobby
    assert not asked(decides, identity="nobody").identities
    assert "numbers" in asked(decides, embedding=b"\0\x3c" * 3).error
    assert "equal length" in asked(decides, embedding=b"\0").error
    assert "zero" in asked(decides, embedding=bytes(128)).error


def test_an_empty_gallery_answers_with_nobody(tmp_path: Path) -> None:
    decides = matcher(tmp_path)
    assert not asked(decides, embedding=pack(A)).identities
    assert not asked(decides).identities
