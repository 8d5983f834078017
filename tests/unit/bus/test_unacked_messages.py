"""What is in hand when a session goes on over another connection: recognised by what it is, not by its number alone."""

from __future__ import annotations

from halimede.bus.message import Packet
from halimede.bus.subscriptions import AckToken, UnackedMessages


class Line:
    """One connection: what was acknowledged over it, as long as it is there."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.up = True

    def take(self, held: UnackedMessages, key: int, payload: bytes, *, again: bool = False) -> AckToken | None:
        def acknowledge() -> bool:
            self.acknowledged += [key] * self.up
            return self.up

        return held.take(key, Packet("t", payload, duplicate=again), acknowledge)

    def cut(self, held: UnackedMessages) -> None:
        self.up = False
        held.disconnected()


def test_what_is_done_while_there_is_no_connection_is_acknowledged_when_it_comes_again() -> None:
    held, first, second = UnackedMessages(durable=True), Line(), Line()
    done, in_hand = first.take(held, 1, b"a"), first.take(held, 2, b"b")
    assert done
    assert in_hand
    first.cut(held)
    done()
    assert second.take(held, 1, b"a", again=True) is None
    assert second.take(held, 2, b"b", again=True) is None
    assert second.acknowledged == [1]
    assert held.busy
    in_hand()
    in_hand()
    assert (first.acknowledged, second.acknowledged, held.busy) == ([], [1, 2], False)


def test_another_message_under_a_number_that_was_set_free_meanwhile_is_a_new_one() -> None:
    held, first, second = UnackedMessages(durable=True), Line(), Line()
    old = first.take(held, 1, b"a")
    first.cut(held)
    new = second.take(held, 1, b"other", again=True)
    assert old
    assert new
    old()
    assert second.acknowledged == []
    new()
    assert second.acknowledged == [1]


def test_what_does_not_come_again_is_forgotten_but_waited_for() -> None:
    held, first, second = UnackedMessages(durable=True), Line(), Line()
    ticket = first.take(held, 1, b"a")
    assert ticket
    first.cut(held)
    held.resumed()
    assert held.busy
    assert second.take(held, 1, b"a", again=True) is not None
    ticket()
    assert second.acknowledged == []


def test_an_acknowledgement_into_a_connection_that_has_just_ended_is_made_up_for() -> None:
    held, first, second = UnackedMessages(durable=True), Line(), Line()
    ticket = first.take(held, 1, b"a")
    assert ticket
    first.up = False  # it has ended, and nobody has been told
    ticket()
    held.disconnected()
    assert second.take(held, 1, b"a", again=True) is None
    assert second.acknowledged == [1]


def test_where_a_session_ends_with_its_connection_nothing_is_recognised() -> None:
    held, first, second = UnackedMessages(durable=False), Line(), Line()
    assert first.take(held, 1, b"a")
    first.cut(held)
    assert second.take(held, 1, b"a", again=True)
