"""The checks of GM itself, and of dead letters: messages that their receiver could not read."""

from __future__ import annotations

from collections.abc import Iterator

from halimede.bus.port import refusal_text
from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import ManagerFacts, SystemFacts

#: the name of the first check
NAME = "global manager"
# the rules of GM: each one's text says when it has a row
SEVERAL_MANAGERS = CheckRule(
    NAME,
    "problem",
    "more than one GM is online on this broker",
    "nodes follow only one of them: edits at another one have no effect",
    "stop all but one: one broker serves one global manager",
    fails=True,
)
OTHER_VERSION = CheckRule(
    NAME,
    "warning",
    "GM's version is not that of this command",
    "a command may show or write less than GM has",
    "install the same version on both",
)
DISCONNECTED = CheckRule(
    "broker",
    "problem",
    "GM is not connected to the broker",
    "edits and reports wait; workers go on, and answer frames as soon as the broker is there",
    "start the broker, or correct GM's --broker: `halimede doctor`",
    fails=True,
)
TOPICS_REFUSED = CheckRule(
    "granted",
    "problem",
    "the broker refuses a subscription or the birth of GM",
    "GM does not receive what it refuses: edits or reports have no effect",
    "grant it in the broker's access rules (docs/security.md), then restart the global manager",
    fails=True,
)
STORE_UNWRITABLE = CheckRule(
    "store",
    "problem",
    "GM cannot write its store",
    "edits are refused, statuses are only in memory",
    "free space; until then edits are refused, statuses are only in memory: docs/operations.md, A full disk",
    fails=True,
)
STORE_QUARANTINED = CheckRule(
    "store",
    "problem",
    "GM has renamed a store that was damaged",
    "resources that only that store had are lost",
    "check its disk, apply missing resources (`halimede get`), then remove these files",
    fails=True,
)
#: the rules of ``examine_readiness``: GM is not ready while one of them has a row
READINESS_RULES = (DISCONNECTED, TOPICS_REFUSED, STORE_UNWRITABLE)
DEAD_LETTERS = CheckRule(
    "dead letters",
    "warning",
    "messages that their receiver could not read",
    "these messages have no effect: a camera's frames are not answered, an edit of a node does not arrive",
    "find the client that publishes there (`halimede events --type Warning`)",
)


def examine_manager(facts: SystemFacts) -> Iterator[Check]:
    """Yield rows about the GM whose facts these are: other GMs online, or its version; its readiness; a damaged store.

    That GM is online: it has answered a command, or runs the checks itself.
    """
    manager, number_online = facts.manager, len(facts.bus.online_stores)
    if number_online > 1:
        yield SEVERAL_MANAGERS.row(f"{number_online} are online")
    elif manager.version != facts.version:
        yield OTHER_VERSION.row(f"its version is {manager.version}, this command's is {facts.version}")
    else:
        yield ok(NAME, f"one, version {manager.version}, epoch {manager.epoch}")
    yield from examine_readiness(manager)
    if manager.quarantined:
        yield STORE_QUARANTINED.row(manager.quarantined, "gm")


def examine_readiness(manager: ManagerFacts) -> Iterator[Check]:
    """Yield a row for each reason why GM is not ready: no broker, refused topics, an unwritable store."""
    if not manager.connected:
        yield DISCONNECTED.row("not connected to the broker", "gm")
    if manager.refused:
        yield TOPICS_REFUSED.row(refusal_text(manager.refused), "gm")
    if manager.store:
        yield STORE_UNWRITABLE.row(manager.store, "gm")


def examine_dead_letters(facts: SystemFacts) -> Iterator[Check]:
    """Yield one row about dead letters: those that GM has counted in the last minute, else those in ``facts.bus``."""
    dead_letters, recent = facts.bus.dead_letters, facts.manager.letters
    if recent:
        yield DEAD_LETTERS.row(f"{recent.number} in the last minute; the first: {recent.topic}: {recent.reason}")
    elif dead_letters:
        first = dead_letters[0]
        yield DEAD_LETTERS.row(
            f"{len(dead_letters)} while this command listened; the first: {first.topic}: {first.reason}"
        )
    else:
        yield ok(DEAD_LETTERS.name, "none")
