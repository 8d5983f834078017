"""Every topic of the contract, every user, publish and subscribe: whoever may, can, and whoever may not, cannot.

On a real Mosquitto over TLS, for certificates alone, or on the broker of `make test-brokers`. What is expected is read
off the contract here, and not by the code that writes the broker's rules.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from halimede.access.site import Principal
from halimede.bus.topic_filter import matches, split_shared
from halimede.contract.examples import NAMES
from halimede.topic import Role, Topic
from halimede.topics import CONTRACT, TRAINER_STATE
from tests.access_world import AUDITOR, SITE, Client, access_world
from tests.waiting import eventually

pytestmark = pytest.mark.slow

#: what a name in a topic is for: users of that kind have it for themselves
OWN = {Role.LC: "node", Role.EDGE: "node", Role.CLOUD: "node", Role.CAMERA: "camera"}
#: who asks and who gives: LCs and GM go by their users' names, an operator's commands by any
PARTIES = ["gm", "lc.edge0", "lc.edge1", "cli-1"]
OWN_USER = {Role.LC, Role.GM}
VALUES = {"node": SITE.nodes, "camera": SITE.cameras, "asker": PARTIES, "source": PARTIES}
#: filters that reach for more than anybody is given
WIDE = ["#", "+/#", "$SYS/#", "node/#", "+/+/+", "+/+/+/+", "+/+/+/+/+", "+/sedna/#", "sedna/#"]
REPORT = Path(__file__).parents[2] / "build" / "acl-matrix.json"
ALLOWED, DENIED = "allowed", "denied"


@dataclass(frozen=True)
class Case:
    """One topic with all names filled in."""

    topic: Topic[Any]
    names: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return self.topic.at(**dict(self.names)).text

    def may(self, principal: Principal, action: str) -> bool:
        publish = action == "publish"
        roles = self.topic.publishers if publish else self.topic.subscribers
        if not publish and self.topic is TRAINER_STATE:
            return principal.role in roles  # an aggregator reads the trainers of all nodes
        party = dict(self.names).get(self.topic.speaker if publish else self.topic.listener)
        if party and principal.role in OWN_USER:
            return principal.role in roles and party == principal.username
        own = OWN.get(principal.role, "")
        return principal.role in roles and dict(self.names).get(own, principal.name) == principal.name


def cases() -> list[Case]:
    found = []
    for topic in CONTRACT:
        values = [VALUES.get(field, [NAMES[field]]) for field in topic.fields]
        found += [Case(topic, tuple(zip(topic.fields, each, strict=True))) for each in product(*values)]
    return found


@pytest.mark.timeout(300)
async def test_whoever_may_can_and_whoever_may_not_cannot(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    async with access_world(tmp_path) as world:
        auditor = await world.client(AUDITOR)
        users = [p for p in SITE.principals() if p != AUDITOR]
        clients = list(await asyncio.gather(*(world.client(user) for user in users)))
        await _publish(clients, auditor, counts)
        await _subscribe(clients, auditor, counts)
    summary = {
        "users": len(users),
        "topics": len(cases()),
        "publish": {word: counts[f"publish {word}"] for word in (ALLOWED, DENIED)},
        "subscribe": {word: counts[f"subscribe {word}"] for word in (ALLOWED, DENIED)},
        "shared": {word: counts[f"shared {word}"] for word in (ALLOWED, DENIED)},
        "wide": {"filters": len(WIDE), DENIED: counts["wide denied"], ALLOWED: counts["wide allowed"]},
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"access matrix: {json.dumps(summary)}")
    assert all(summary[kind][word] for kind in ("publish", "subscribe", "shared") for word in (ALLOWED, DENIED))


async def _publish(clients: list[Client], auditor: Client, counts: Counter[str]) -> None:
    """Everyone publishes everywhere; the auditor sees what the broker let through."""
    await auditor.listen(["#"])
    expected, wrong = set(), []

    async def all_of(client: Client) -> None:
        for case in cases():
            tag = f"{client.principal.username} says"
            may = case.may(client.principal, "publish")
            code = await client.publish(case.text, tag)
            if code != (0 if may else 0x87):
                wrong.append(f"{client.principal.username} publishes {case.text}: {code:#x}")
            if may:
                expected.add((case.text, tag))
            counts[f"publish {ALLOWED if may else DENIED}"] += 1

    await asyncio.gather(*(all_of(client) for client in clients))
    await auditor.publish("sentinel", "end")
    await eventually(lambda: ("sentinel", "end") in auditor.heard)
    await auditor.unlisten(["#"])
    assert wrong == []
    assert {heard for heard in auditor.heard if heard[1].endswith(" says")} == expected


async def _subscribe(clients: list[Client], auditor: Client, counts: Counter[str]) -> None:
    """Everyone subscribes to everything, the auditor publishes everywhere."""
    plain = [case.text for case in cases()]
    await _round("subscribe", {c.principal.username: plain for c in clients}, clients, auditor, counts)
    # a group of one's own: others would take a share of what one is to be sent
    own = {c.principal.username: [f"$share/{c.principal.username}/{text}" for text in plain] for c in clients}
    await _round("shared", own, clients, auditor, counts)
    for wide in WIDE:
        await _round("wide", {c.principal.username: [wide] for c in clients}, clients, auditor, counts)
        group = {c.principal.username: [f"$share/{c.principal.username}/{wide}"] for c in clients}
        if not wide.startswith("$"):
            await _round("wide", group, clients, auditor, counts)


async def _round(
    kind: str, filters: dict[str, list[str]], clients: list[Client], auditor: Client, counts: Counter[str]
) -> None:
    for client in clients:
        client.heard.clear()
    await asyncio.gather(*(client.listen(filters[client.principal.username]) for client in clients))
    await asyncio.gather(*(auditor.publish(case.text, "told") for case in cases()))
    may = {
        client.principal.username: {case.text for case in cases() if case.may(client.principal, "subscribe")}
        for client in clients
    }
    for client in clients:
        user = client.principal.username
        wanted = may[user] if kind != "wide" else {text for text in may[user] if _takes(filters[user][0], text)}
        if kind == "wide" and filters[user][0] in client.refused:
            wanted = set()
        await eventually(lambda client=client, wanted=wanted: wanted <= {topic for topic, _ in client.heard})
        await client.settle()
        heard = {topic for topic, _ in client.heard}
        assert heard == wanted, f"{user} with {filters[user][:3]}: {heard ^ wanted}"
        counts[f"{kind} {ALLOWED}"] += len(wanted)
        counts[f"{kind} {DENIED}"] += len(cases()) - len(wanted)
    await asyncio.gather(*(client.unlisten(filters[client.principal.username]) for client in clients))


def _takes(filter_: str, topic: str) -> bool:
    return matches(split_shared(filter_)[1].split("/"), topic.split("/"))
