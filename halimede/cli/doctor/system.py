"""The checks of ``doctor`` for the system: all health checks, which ``status`` runs as well."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime

import halimede
from halimede.cli.broker_address import START_IT
from halimede.cli.client import Client
from halimede.cli.system_facts import listen, read_system
from halimede.errors import HalimedeError
from halimede.health_checks.check import Check, problem
from halimede.health_checks.facts import ManagerFacts, SystemFacts
from halimede.health_checks.manager import NAME as MANAGER
from halimede.health_checks.manager import examine_dead_letters
from halimede.health_checks.registry import examine

#: seconds to wait for dead letters, statuses of cameras and a second GM
LISTEN_S = 1.0


async def examine_system(client: Client, *, tls: bool) -> AsyncGenerator[Check, None]:
    """Yield the rows of all health checks; if GM does not answer, only a row with the error, and that of dead letters.

    ``tls``: the connection to the broker has TLS.
    """
    bus = await listen(client.bus, LISTEN_S)
    try:
        facts = replace((await read_system(client, tls=tls)).facts, bus=bus)
    except HalimedeError as error:
        yield problem(MANAGER, str(error), START_IT)
        checks = examine_dead_letters(SystemFacts(datetime.now(UTC), ManagerFacts(), halimede.__version__, bus=bus))
    else:
        checks = examine(facts)
    for check in checks:
        yield check
