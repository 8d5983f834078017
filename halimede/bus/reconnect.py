"""Decides when a client connects again: soon; spread after an outage; late after a client id conflict.

``ReconnectingBus`` reports the ends of its connections here and waits for the pauses. A connection whose subscriptions
and birth are refused by a broker that is not ready is ended and made again (``BrokerReadiness``).

If two clients have one id, a broker accepts the newcomer and ends the older connection, so two clients that both
reconnect at once disconnect each other without limit. The older client stays: it reconnects at once, a few times. The
newcomer pauses long enough for the other to settle. For that neither must detect the other, only whether its own last
connection held.

MQTT 5 has a reason code for it (0x8E), which is proof. Mosquitto 2.0.11 closes the older connection without a reason:
several consecutive connections that were accepted and ended soon, while the broker was available, mean the same.
Messages can prove the conflict as well (``must_disconnect``).

A session that outlives its connection may be taken over, and back: among clients that ``share`` one, there is no
conflict.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from halimede.bus.message import FAILURE, NO_SHARED, NO_WILDCARDS
from halimede.system.backoff import exponential

#: most seconds of the first pause between two attempts, and of any pause
FIRST_BACKOFF, LAST_BACKOFF = 0.2, 5.0
#: a broker that accepts no connection is down for all its clients: they reconnect spread over at least so many seconds
SPREAD = 1.0
#: seconds after which a connection was a good one: the next back-off starts small again
STABLE_AFTER = 5.0
#: least and most seconds of a newcomer's first pause; later pauses double, up to this multiple of the first one, with
#: proof of a conflict and without
PAUSE = (20.0, 40.0)
PROVEN_MULTIPLE, UNPROVEN_MULTIPLE = 4, 2
#: a connection that ended sooner (seconds) is a brief one
BRIEF = 2.0
#: seconds after which a client counts as the older one
SETTLED = 5.0
#: consecutive brief connections that mean a conflict: for a client that paused before, for a newcomer, for a settled
#: client
RETURNED, NEWCOMER, INCUMBENT = 2, 3, 6
#: most connections in succession that are ended because the broker is not ready; least pause after such a connection,
#: as a share of its range
MOST_UNREADY, UNREADY_SHARE = 6, 0.5
#: refusals of features that the broker does not have: they stay
PERMANENT = frozenset({NO_SHARED, NO_WILDCARDS})


class ReconnectBackoff:
    """The pauses of one client between attempts: the range doubles each time, and the pause is random in it.

    ``chance``: the source of random numbers.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._failures = 0
        #: least upper end of the range, in seconds
        self._spread = 0.0
        #: lower end of the range, as a share of its upper end
        self._least = 0.0

    def record_failure(self) -> None:
        """Record that no connection could be made: the next pauses are longer and spread."""
        self._failures += 1
        self._spread, self._least = SPREAD, 0.0

    def record_end(self, lasted: float) -> None:
        """Record the end of a connection that lasted ``lasted`` seconds."""
        self._failures = 1 if lasted >= STABLE_AFTER else self._failures + 1
        self._spread = self._least = 0.0

    def record_unready(self, times: int) -> None:
        """Record that the broker was not ready for ``times`` connections in succession.

        The ranges start small again, and have a lower end: all pauses together give the broker at least 5.6 s.
        """
        self._failures = times
        self._spread, self._least = 0.0, UNREADY_SHARE

    def pause(self) -> float:
        """Return the next pause in seconds; it changes nothing but the random numbers."""
        longest = max(self._spread, exponential(self._failures, FIRST_BACKOFF, LAST_BACKOFF))
        return self._chance.uniform(self._least * longest, longest)


class BrokerReadiness:
    """Decides whether a broker's refusals mean that it is not ready yet.

    A broker may accept clients before its access rules are loaded, and refuse every subscription and publish until
    then. So a connection to which it grants nothing, or not all that the client's last connection had, must end, at
    most six times in succession. After that the refusals count as the broker's rules.

    Attributes:
        unready: connections in succession that had to end.
        answers: reason codes of the last connection that lived on, by filter or birth topic.

    """

    def __init__(self) -> None:
        self.unready = 0
        self.answers: dict[str, int] = {}

    def must_end(self, answers: Mapping[str, int]) -> bool:
        """Record all answers to a connection; return whether it must end, because the broker is not ready.

        ``answers``: reason codes by filter or birth topic.
        """
        refused = {name for name, reason in answers.items() if reason >= FAILURE and reason not in PERMANENT}
        is_deaf = all(reason >= FAILURE for reason in answers.values())
        was_granted = any(self.answers.get(name, FAILURE) < FAILURE for name in refused)
        if refused and (is_deaf or was_granted) and self.unready < MOST_UNREADY:
            self.unready += 1
            return True
        self.unready, self.answers = 0, dict(answers)
        return False


class ClientIdConflict:
    """Detects a second client with the same client id, and decides which of the two pauses.

    ``share``: several clients take over one session in turn, which is no conflict.

    Attributes:
        suspected: report a conflict to the operator after the next connect.

    """

    def __init__(self, *, share: bool = False) -> None:
        self.suspected = False
        self._share = share
        #: whether a connection held for SETTLED seconds since the last pause: then this client is the older one
        self._settled = False
        #: whether a proven conflict requires a pause after the present connection
        self._must_pause = False
        #: consecutive brief connections, or connections that another client took over
        self._brief = 0
        #: pauses since it was last settled
        self._yielded = 0

    def record_failure(self) -> None:
        """Record that no connection could be made: the broker is down or busy."""
        self._brief = 0

    def must_disconnect(self) -> bool:
        """Record a proven conflict; return whether this client must disconnect and pause."""
        self._must_pause = not self._settled
        return self._must_pause

    def pause_after(self, lasted: float, *, takeover: bool, chance: random.Random, explained: bool = False) -> float:
        """Return the pause in seconds after a connection that lasted ``lasted`` seconds, usually 0, and record its end.

        ``takeover``: the broker reported that another client took the session over. ``explained``: the broker gave a
        reason, or this client ended it: no conflict is inferred.
        """
        if self._share:
            return 0.0
        if lasted >= SETTLED:
            self._settled, self._yielded = True, 0
        self._brief = self._brief + 1 if takeover or (lasted < BRIEF and not explained) else 0
        if not self._must_pause and self._brief < self._patience(takeover=takeover):
            return 0.0
        # without proof it may be a bad connection, which resembles a conflict
        most = PROVEN_MULTIPLE if takeover or self._must_pause else UNPROVEN_MULTIPLE
        pause = chance.uniform(*PAUSE) * exponential(self._yielded + 1, 1, most)
        self.suspected = True
        self._settled = self._must_pause = False
        self._brief = 0
        self._yielded += 1
        return pause

    def _patience(self, *, takeover: bool) -> int:
        """Return how many consecutive brief connections mean a conflict."""
        if self._settled:
            return INCUMBENT
        if takeover:
            return 1
        return RETURNED if self._yielded else NEWCOMER
