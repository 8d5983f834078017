"""A sample to the cloud and its answer back, compared with gRPC, HTTP, other MQTT clients and MLServer.

    python -m bench.offload                                       all ways, five interleaved rounds
    python -m bench.offload --ways halimede,grpc_aio --payloads 150528 --rounds 3
    python -m bench.offload --profile client --payload 150528     where our client's time goes (or the server's)
    python -m bench.offload --markdown                            the last run's table; --write: in the docs

Client and server of each way are processes of their own, over one Mosquitto where they need a broker, and live as long
as one size of samples is measured: they are asked in turn, so that what the machine does otherwise hits all of them.
``rtt_ms`` is the median round trip with one request in flight, ``rate`` the answers a second with 16. Most of
the others' ways answer with a short echo; ours, and those whose names end with ``_model``, run the same ONNX model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import network, results
from bench import offload_report as report
from bench.children import child
from bench.peers import OVER_BROKER, SHAPES, WAYS
from bench.peers.peer import Round
from bench.results import ROOT
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from tests.brokers.installation import Installation, installation_at
from tests.brokers.process import without_users
from tests.ports import free_port

OUT = results.FOLDER / "offload.json"
#: the plot of a whole run, and where its tables are shown
SHOWN = ROOT / "docs" / "offload.png"
FLIGHT = 16
#: requests in flight while they warm up
WARM = 4
#: seconds: for a process to be ready; for a round beyond its own time; from another broker's start until it is used
START, LONGEST, SETTLE_S = 120.0, 330.0, 10.0
#: numbers of threads stay out of the comparison; what goes wrong is still logged
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HALIMEDE_LOG_LEVEL": "WARNING"}
#: one round of one way at one payload with one flight: answers a second, milliseconds, and a sample's microseconds of
#: processor in ``client``, ``server`` and ``broker``
Found = dict[str, float]


class BrokenWayError(Exception):
    """A process of a way ended, or says nothing any more."""


@dataclass(slots=True)
class Sides:
    """The two processes of a way."""

    way: str
    server: asyncio.subprocess.Process
    client: asyncio.subprocess.Process

    async def round(self, wanted: Round, broker: int | None) -> Found:
        """Run one round."""
        others = {"server": self.server.pid, **({"broker": broker} if broker else {})}
        before = {name: cpu_s([pid]) for name, pid in others.items()}
        assert self.client.stdin is not None  # for the type checker
        self.client.stdin.write(json.dumps(asdict(wanted)).encode() + b"\n")
        line = await said(self.client, self.way, wanted.seconds + LONGEST)
        found: Found = json.loads(line)
        for name, pid in others.items():
            found[name] = (cpu_s([pid]) - before[name]) / found["count"] * 1e6
        return found


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that processes and their children have taken, by their threads that live."""
    taken = 0.0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                taken += int((task / "schedstat").read_text().split()[0]) / 1e9
                taken += cpu_s(int(child) for child in (task / "children").read_text().split())
    return taken


async def said(process: asyncio.subprocess.Process, way: str, timeout_s: float) -> str:
    """Return the next line that a process prints. Raises BrokenWayError when there is none in time."""
    assert process.stdout is not None  # for the type checker
    try:
        async with asyncio.timeout(timeout_s):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        raise BrokenWayError(f"{way} has said nothing for {timeout_s:.0f} s") from None
    if not line:
        raise BrokenWayError(f"a process of {way} ended with {await process.wait()}")
    return line


def process(
    way: str, side: str, *where: str, profile: str = ""
) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run one side of a way; its standard input's end is its own."""
    return child("bench.peers", way, side, *where, env={**ALONE, "BENCH_PROFILE": profile})


@contextlib.asynccontextmanager
async def running(way: str, broker: MosquittoProcess, profile: str = "") -> AsyncIterator[Sides]:
    """Run both sides of a way until the block ends, the client first."""
    where = (broker.url,) if way in OVER_BROKER else ()
    async with process(way, "server", *where, profile=profile) as server:
        port = (await said(server, way, START)).split()[-1]
        async with process(way, "client", *(where or (port,))) as client:
            await said(client, way, START)
            yield Sides(way, server, client)


def broker_in(folder: str, installation: Installation | None) -> MosquittoProcess:
    """Return a broker that can be started in a folder: an installed one, or Mosquitto of this machine."""
    return without_users(installation, Path(folder), free_port()) if installation else MosquittoProcess(Path(folder))


async def measure(
    ways: Sequence[str], payloads: Sequence[int], rounds: int, seconds: float, installation: Installation | None = None
) -> tuple[dict[str, Any], set[str]]:
    """Ask all ways in turn, round by round; return what ``report.summary`` makes of it, and the ways that broke."""
    found: dict[tuple[int, str, int], list[Found]] = {}
    broken: set[str] = set()
    for size in payloads:
        with tempfile.TemporaryDirectory(prefix="bench-offload-") as folder:
            async with broker_in(folder, installation) as broker, contextlib.AsyncExitStack() as stack:
                await asyncio.sleep(SETTLE_S if installation else 0)
                sides = {way: await stack.enter_async_context(running(way, broker)) for way in ways}
                for number in range(rounds + 1):
                    began = time.perf_counter()
                    taken = await one_round(sides, size, number, seconds, broker.pid)
                    for (way, flight), each in taken.items() if number else ():
                        found.setdefault((size, way, flight), []).append(each)
                    word = f"round {number} of {rounds}" if number else "warmed up"
                    print(f"{size} bytes, {word}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
                broken |= set(ways) - set(sides)
    return report.summary(found, FLIGHT), broken


async def one_round(
    sides: dict[str, Sides], size: int, number: int, seconds: float, broker: int
) -> dict[tuple[str, int], Found]:
    """Ask all ways in turn, every other round in reverse; a way that breaks is left out from then on.

    Round 0 is to warm up.
    """
    found: dict[tuple[str, int], Found] = {}
    flights, each_s = ((1, FLIGHT), seconds) if number else ((WARM,), seconds / 3)
    ways = list(sides)
    for flight, way in itertools.product(flights, ways if number % 2 else ways[::-1]):
        if way not in sides:
            continue
        wanted = Round(size, flight, each_s, least=flight)
        try:
            found[way, flight] = await sides[way].round(wanted, broker if way in OVER_BROKER else None)
        except BrokenWayError as error:
            print(f"{error}: its rounds up to here count", file=sys.stderr, flush=True)
            del sides[way]
    return found


def spent(found: Found) -> str:
    """Return the processor time of a sample, by process."""
    return " + ".join(f"{found[name]:.0f} ({name})" for name in report.PROCESSES if name in found)


async def profile(side: str, size: int, flight: int, seconds: float, way: str) -> None:
    """Run our way alone with one side profiled, and print what that side prints."""
    with tempfile.TemporaryDirectory(prefix="bench-offload-") as folder:
        async with MosquittoProcess(Path(folder)) as broker:
            async with running(way, broker, side) as sides:
                await sides.round(Round(size, flight, 0.5), broker.pid)
                plain = await sides.round(Round(size, flight, seconds), broker.pid)
                wanted = Round(size, flight, seconds, profile=side == "client")
                found = await sides.round(wanted, broker.pid)
            for word, each in (("without", plain), ("with", found)):
                print(
                    f"{way}, {size} bytes, {flight} in flight, {word} a profile of the {side}: {each['rate']:.0f}/s, "
                    f"median {each['rtt_ms']:.3f} ms, {spent(each)} us of processor a sample"
                )
            print(f"samples in the profile: {found['count'] if side == 'client' else 'all of three rounds'}")


def installed(ways: Sequence[str]) -> list[str]:
    """Return the ways that can run here: MLServer is installed first, and left out where that fails."""
    if "mlserver_grpc" not in ways:
        return list(ways)
    from bench import serve  # noqa: PLC0415  # a second that other ways need not take

    try:
        serve.peer()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"mlserver_grpc is left out: it does not install here ({error})", file=sys.stderr)
        return [way for way in ways if way != "mlserver_grpc"]
    return list(ways)


def chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    """Read a list from the command line."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise SystemExit(f"--{what} {text}: {', '.join(wrong) or 'nothing'}: choose of {','.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and say which targets are met; return 1 when a way broke."""
    parser = argparse.ArgumentParser(prog="python -m bench.offload", description=str(__doc__).splitlines()[0])
    sizes = [str(size) for size in SHAPES]
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, help="of a round of a way (default 0.6; of --profile 2)")
    parser.add_argument("--payloads", "--payload", default=",".join(sizes), help="bytes of a sample (default: all)")
    parser.add_argument("--ways", default=",".join(WAYS), help="default: all")
    parser.add_argument(
        "--network",
        choices=("own", "machine"),
        default="own",
        help="own: a namespace with the kernel's own congestion control, for root on Linux (default)",
    )
    parser.add_argument("--broker", type=Path, metavar="FOLDER", help="another broker than Mosquitto: docs/brokers.md")
    parser.add_argument("--profile", choices=("client", "server"), help="profile this side of our way instead")
    parser.add_argument("--flight", type=int, default=FLIGHT, help="of --profile: requests in flight (default 16)")
    parser.add_argument("--markdown", action="store_true", help="print the table of the last run")
    parser.add_argument("--write", action="store_true", help="write it into docs/performance.md")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures are written")
    given = parser.parse_args(arguments)
    payloads = [int(size) for size in chosen(given.payloads, sizes, "payloads")]
    ways = chosen(given.ways, WAYS, "ways")
    try:
        installation = installation_at(given.broker) if given.broker else None
    except HalimedeError as error:
        parser.error(str(error))
    if given.markdown or given.write:
        table = report.markdown(json.loads(given.out.read_text()))
        print(table)
        if given.write:
            results.insert(results.PERFORMANCE, table, report.BEGIN, report.END)
        return 0
    ways = ways if given.profile else installed(ways)  # which may take a network with more in it
    with network.chosen(given.network) as where:
        if given.profile:
            way = ways[0] if len(ways) == 1 else "halimede"
            asyncio.run(profile(given.profile, payloads[0], given.flight, given.seconds or 2.0, way))
            return 0
        found, broken = asyncio.run(measure(ways, payloads, given.rounds, given.seconds or 0.6, installation))
    found |= {"where": where}
    results.write(given.out, found)
    print(report.table(found))
    picture = given.out.with_suffix(".png")
    report.plot(found, picture)
    if given.out == OUT and set(payloads) == set(SHAPES) and set(ways) == set(WAYS):
        shutil.copy(picture, SHOWN)
    print(f"\nwritten to {given.out} and {picture.name}")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BrokenWayError as broken:
        raise SystemExit(f"it did not begin: {broken}") from None
