"""The checks of GM itself, and of messages that nobody can read."""

from __future__ import annotations

from collections.abc import Iterator

from halimede.bus.port import refusal_text
from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import ManagerFacts, SystemFacts

NAME = "global manager"
SEVERAL = CheckRule(
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
BROKER = CheckRule(
    "broker",
    "problem",
    "GM is not connected to the broker",
    "edits and reports wait; workers go on, and answer frames as soon as the broker is there",
    "start the broker, or correct GM's --broker: `halimede doctor`",
    fails=True,
)
REFUSED = CheckRule(
    "granted",
    "problem",
    "the broker refuses a subscription or the birth of GM",
    "GM does not receive what it refuses: edits or reports have no effect",
    "grant it in the broker's access rules (docs/security.md), then restart the global manager",
    fails=True,
)
STORE = CheckRule(
    "store",
    "problem",
    "GM cannot write its store",
    "edits are refused, statuses are only in memory",
    "free space; until then edits are refused, statuses are only in memory: docs/operations.md, A full disk",
    fails=True,
)
QUARANTINED = CheckRule(
    "store",
    "problem",
    "GM has renamed a store that was damaged",
    "resources that only that store had are lost",
    "check its disk, apply missing resources (`halimede get`), then remove these files",
    fails=True,
)
#: rules because of which GM is not ready
UNREADY = (BROKER, REFUSED, STORE)
LETTERS = CheckRule(
    "dead letters",
    "warning",
    "messages that their receiver could not read",
    "these messages have no effect: a camera's frames are not answered, an edit of a node does not arrive",
    "find the client that publishes there (`halimede events --type Warning`)",
)


def examine_manager(facts: SystemFacts) -> Iterator[Check]:
    """Check that there is one GM, of this version, with a store that it can write."""
    manager, number = facts.manager, len(facts.bus.stores)
    if number > 1:
        yield SEVERAL.row(f"{number} are online")
    elif manager.version != facts.version:
        yield OTHER_VERSION.row(f"its version is {manager.version}, this command's is {facts.version}")
    else:
        yield ok(NAME, f"one, version {manager.version}, epoch {manager.epoch}")
    yield from examine_trouble(manager)
    if manager.quarantined:
        yield QUARANTINED.row(manager.quarantined, "gm")


def examine_trouble(manager: ManagerFacts) -> Iterator[Check]:
    """Check for what makes GM not ready."""
    if not manager.connected:
        yield BROKER.row("not connected to the broker", "gm")
    if manager.refused:
        yield REFUSED.row(refusal_text(manager.refused), "gm")
    if manager.store:
        yield STORE.row(manager.store, "gm")


def examine_dead_letters(facts: SystemFacts) -> Iterator[Check]:
    """Check for messages that could not be read."""
    letters, recent = facts.bus.dead_letters, facts.manager.letters
    if recent:
        yield LETTERS.row(f"{recent.number} in the last minute; the first: {recent.topic}: {recent.reason}")
    elif letters:
        first = letters[0]
        yield LETTERS.row(f"{len(letters)} while this command listened; the first: {first.topic}: {first.reason}")
    else:
        yield ok(LETTERS.name, "none")
