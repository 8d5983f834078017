"""``halimede doctor``: runs all checks that are possible from this machine, and prints a remedy for each problem.

The order is this machine, the broker, what the broker offers, and the system. A check that depends on a failed one is
skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from rich.text import Text

from halimede.bus.settings import MqttSettings
from halimede.cli import broker_address as brokers
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.doctor import broker as doctor_broker
from halimede.cli.doctor import broker_features, latency, machine
from halimede.cli.doctor.broker_list import examine_list
from halimede.cli.doctor.system import examine_system
from halimede.cli.options import Format
from halimede.cli.output import COLOURS, clean, console, dump
from halimede.cli.runner import run
from halimede.errors import HalimedeError
from halimede.health_checks.check import Check, ok, problem, worst

#: seconds to wait for a GM that is restarting
PATIENCE_S = 2.0


def doctor(
    output: o.ReportOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Check the whole system from this machine, and print what to do. Exit code 1: there is a problem.

    \b
    Examples:
      halimede doctor
      halimede doctor --broker mqtts://broker.example:8883 --credentials site/operators/admin
      halimede doctor -o json | jq '.checks[] | select(.level != "ok")'
    """
    run(lambda: run_checks(broker, credentials, Format(output)))


async def run_checks(option: str, credentials: str, form: Format) -> int:
    """Run all checks, print them, and return the exit code: 1 if there is a problem.

    ``option`` and ``credentials`` are those of the command; empty: not given.
    """
    checks = []
    async with aclosing(examine(option, credentials)) as examination:
        async for check in examination:
            checks.append(check)
            if form is Format.TABLE:
                _print(check)
    level = worst(checks)
    if form is not Format.TABLE:
        dump({"healthy": level != "problem", "level": level, "checks": [check.fields() for check in checks]}, form)
    elif level == "ok":
        console().print(Text("No problems found.", style="green"))
    return 1 if level == "problem" else 0


async def examine(option: str, credentials: str) -> AsyncGenerator[Check, None]:
    """Yield the rows of all checks, as soon as each is known. ``option`` and ``credentials`` are the command's."""
    for check in machine.disks(brokers.home()):
        yield check
    try:
        broker = brokers.find(option, credentials=credentials)
    except HalimedeError as error:
        yield problem("broker", str(error), "give --broker host:port, or HALIMEDE_BROKER")
        return
    yield ok("broker", str(broker))
    reachable = []
    for endpoint in broker.settings.endpoints:
        settings = broker.settings.at(endpoint)
        level = "ok"
        async with aclosing(doctor_broker.reach(settings)) as checks:
            async for check in checks:
                level = check.level
                yield check
        if level != "problem":
            reachable.append(settings)
            yield await doctor_broker.strangers(settings)
    if not reachable:
        return
    async with aclosing(_inside(broker, reachable)) as checks:
        async for check in checks:
            yield check


async def _inside(broker: BrokerAddress, reachable: Sequence[MqttSettings]) -> AsyncGenerator[Check, None]:
    """Yield the rows of the checks over a connection; ``reachable`` are the settings of each broker that answers."""
    client = Client.to(broker, patience_s=PATIENCE_S)
    try:
        await client.__aenter__()
    except UnreachableError as error:
        yield problem("credentials", str(error), "use the credentials of an operator of this site (--credentials)")
        return
    try:
        shown = broker.settings.credentials
        yield ok("credentials", f"accepted, with {shown.folder}" if shown else "accepted, without credentials")
        version = await latency.broker_version(client.bus)
        if version:
            yield ok("version", version)
        software = broker_features.recognize(version)
        for check in broker_features.limits(client.bus.grants, software):
            yield check
        may_publish = True
        async for check in doctor_broker.speed(client.bus, reachable[0]):
            may_publish = may_publish and check.level != "problem"
            yield check
        if may_publish:
            for check in await broker_features.examine_features(broker.settings, client.bus.grants, software):
                yield check
            for check in await examine_list(reachable):
                yield check
        yield await doctor_broker.rules(client.bus)
        async for check in examine_system(client, tls=broker.settings.secure):
            yield check
    finally:
        await client.__aexit__(None, None, None)


def _print(check: Check) -> None:
    """Print the row of a check."""
    line = Text(f"{check.level:<9}", style=COLOURS[check.level])
    line.append(f"{check.name:<16}", style="default bold").append(clean(check.found), style="default not bold")
    out = console()
    out.print(line)
    if check.do:
        out.print(Text(clean(f"{'':<25}{check.do}"), style="dim"))
