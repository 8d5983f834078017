"""What is in hand when a session goes on over another connection: recognised by what it is, not by its number alone."""

from __future__ import annotations

from halimede.bus.message import Packet
from halimede.bus.subscriptions import AckToken, UnackedMessages


class Line:
    """One connection: what was acknowledged over it, as long as it is there."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.up = True

    def take(self, unacked: UnackedMessages, key: int, payload: bytes, *, again: bool = False) -> AckToken | None:
        def acknowledge() -> bool:
            self.acknowledged += [key] * self.up
            return self.up

        return unacked.record(key, Packet("t", payload, duplicate=again), acknowledge)

    def new(self, unacked: UnackedMessages, key: int, payload: bytes, *, again: bool = False) -> AckToken:
        """Take what is recognised as a new message."""
        token = self.take(unacked, key, payload, again=again)
        assert token
        return token

    def cut(self, unacked: UnackedMessages) -> None:
        self.up = False
        unacked.disconnected()


def test_what_is_done_while_there_is_no_connection_is_acknowledged_when_it_comes_again() -> None:
    unacked, first, second = UnackedMessages(durable=True), Line(), Line()
    done, in_hand = first.new(unacked, 1, b"a"), first.new(unacked, 2, b"b")
    first.cut(unacked)
    done()
    assert second.take(unacked, 1, b"a", again=True) is None
    assert second.take(unacked, 2, b"b", again=True) is None
    assert second.acknowledged == [1]
    assert unacked.busy
    in_hand()
    in_hand()
    assert (first.acknowledged, second.acknowledged, unacked.busy) == ([], [1, 2], False)


def test_another_message_under_a_number_that_was_set_free_meanwhile_is_a_new_one() -> None:
    unacked, first, second = UnackedMessages(durable=True), Line(), Line()
    old = first.new(unacked, 1, b"a")
    first.cut(unacked)
    new = second.new(unacked, 1, b"other", again=True)
    old()
    assert second.acknowledged == []
    new()
    assert second.acknowledged == [1]


def test_a_message_that_the_broker_has_not_sent_before_is_a_new_one_whatever_its_number_and_body() -> None:
    unacked, line = UnackedMessages(durable=True), Line()
    assert line.take(unacked, 1, b"a")
    assert line.take(unacked, 1, b"a")
    assert unacked.count == 2


def test_what_does_not_come_again_is_forgotten_but_waited_for() -> None:
    unacked, first, second = UnackedMessages(durable=True), Line(), Line()
    ticket = first.new(unacked, 1, b"a")
    first.cut(unacked)
    unacked.forget_unrepeated()
    assert unacked.busy
    assert second.take(unacked, 1, b"a", again=True) is not None
    ticket()
    assert second.acknowledged == []


def test_an_acknowledgement_into_a_connection_that_has_just_ended_is_made_up_for() -> None:
    unacked, first, second = UnackedMessages(durable=True), Line(), Line()
    ticket = first.new(unacked, 1, b"a")
    first.up = False  # it has ended, and nobody has been told
    ticket()
    unacked.disconnected()
    assert second.take(unacked, 1, b"a", again=True) is None
    assert second.acknowledged == [1]


def test_where_a_session_ends_with_its_connection_nothing_is_recognised() -> None:
    unacked, first, second = UnackedMessages(durable=False), Line(), Line()
    assert first.take(unacked, 1, b"a")
    assert first.take(unacked, 1, b"a", again=True)
    first.cut(unacked)
    assert second.take(unacked, 1, b"a", again=True)


def test_a_connection_is_not_read_from_eight_above_the_receive_maximum_down_to_it() -> None:
    calls = list[bool]()
    unacked, line = UnackedMessages(durable=False, receive_maximum=4, on_full=calls.append), Line()
    tokens = [line.new(unacked, number, b"a") for number in range(1, 13)]
    assert (unacked.full, calls) == (False, [])
    tokens += [line.new(unacked, number, b"a") for number in (13, 14)]
    assert (unacked.full, calls) == (True, [True])
    for count, token in enumerate(tokens[:10]):
        assert (unacked.count, unacked.full) == (14 - count, True)
        token()
    assert (unacked.count, unacked.full, calls) == (4, False, [True, False])
