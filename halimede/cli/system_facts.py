"""Collects the facts for the health checks of ``status`` and ``doctor``: GM's answers, and messages on the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import halimede
from halimede import topics
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.inferencemodel import PLURAL as SERVED
from halimede.api.model import PLURAL as MODELS
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli.cameras import statuses
from halimede.cli.client import Client
from halimede.errors import BusError
from halimede.health_checks.facts import BusFacts, ClockComparison, ManagerFacts, SystemFacts
from halimede.messages import DeadLetter, GmPresence

#: most stores of GMs, and most dead letters, that are collected
MOST_STORES, MOST_LETTERS = 5, 100


@dataclass(frozen=True, slots=True)
class SystemAnswers:
    """GM's answers."""

    #: GM's answer to ``version``: all that it reports of itself, as it was received
    version: Mapping[str, Any]
    #: all facts, without those of the bus
    facts: SystemFacts
    #: a list of resources was cut at the size of a reply
    truncated: bool


async def listen(bus: Bus, seconds: float) -> BusFacts:
    """Return the messages that arrive within ``seconds``; if the broker refuses a subscription, those until then."""
    facts = BusFacts()

    async def on_letter(delivery: Delivery[DeadLetter]) -> None:
        if len(facts.dead_letters) < MOST_LETTERS:
            facts.dead_letters.append(delivery.body)

    async def on_presence(delivery: Delivery[GmPresence]) -> None:
        if delivery.body.online and len(facts.online_stores) < MOST_STORES:
            facts.online_stores.add(delivery.body.store)

    with suppress(BusError):
        await bus.subscribe(topics.DEAD_LETTER.filter(), on_letter)
        await bus.subscribe(topics.GM_PRESENCE.filter(), on_presence)
        facts.cameras.extend(await statuses(bus, seconds))
        await bus.unsubscribe(topics.DEAD_LETTER.filter())
        await bus.unsubscribe(topics.GM_PRESENCE.filter())
    return facts


async def read_system(client: Client, *, tls: bool = False) -> SystemAnswers:
    """Return GM's answers about itself, the nodes and the resources. ``tls``: the connection has TLS.

    Raises UnreachableError and ApiRefusedError.
    """
    loop = asyncio.get_running_loop()
    began, began_s = datetime.now(UTC), loop.time()
    answer = await client.version()
    took_s = loop.time() - began_s
    nodes = await client.nodes()
    services, truncated = await client.services_by_kind()
    resources = dict(services)
    for kind, plural in (("im", SERVED), ("model", MODELS), ("dataset", DATASETS)):
        resources[kind], more = await client.list(plural)
        truncated = truncated or more
    facts = SystemFacts(
        datetime.now(UTC),
        ManagerFacts.of(answer),
        halimede.__version__,
        nodes=nodes,
        resources=resources,
        clock=ClockComparison(began, took_s),
        tls=tls,
    )
    return SystemAnswers(answer if isinstance(answer, Mapping) else {"version": answer}, facts, truncated)
