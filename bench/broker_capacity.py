"""How many frames a second one core of a broker carries, by size.

    python -m bench.broker_capacity                      Mosquitto of this machine, some three minutes
    python -m bench.broker_capacity --brokers FOLDER     also the brokers of a folder (docs/brokers.md)
    python -m bench.broker_capacity --write              the table and the model, into docs/scale.md
    python -m bench.broker_capacity --sizes 10,90        how far the model of docs/scale.md is off at other sizes, in KB

The broker has one core, and publisher and subscriber have another one; frames are published at QoS 1, 16 at a time, and
delivered once. The broker's processor time of a frame is measured. A model has the times of three sizes: a time for a
frame, one for each of its KB, and another one for each KB of a frame of over 128 KiB. It is compared with the three
other sizes: the command ends with 1 if it misses one of them by over 15 %. With ``--sizes``, two models are compared
with these sizes: the one that is fitted now, and the one of docs/scale.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import results
from bench.control_idle import nanoseconds
from bench.results import ROOT
from halimede import log
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.errors import HalimedeError
from tests.brokers.installation import Installation, installations
from tests.brokers.process import BrokerProcess, without_users
from tests.ports import free_port

OUT, PAGE = results.FOLDER / "broker_capacity.json", ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- table of bench.broker_capacity -->", "<!-- end of the table -->"
#: bytes of frames on which the model is fitted, and with which it is compared
FITTED, COMPARED = (4_000, 60_000, 400_000), (16_000, 150_000, 1_000_000)
#: bytes of the largest frame that can be measured
LARGEST = 16_000_000
#: bytes above which each KB takes another time
LARGE = 128 * 1024
#: what the model may miss
TOLERANCE = 0.15
#: messages under way at a time; seconds of warming up, of one measurement, and until a broker is quiet after its start
WINDOW, WARM_S, MEASURE_S, SETTLE_S = 16, 1.0, 5.0, 10.0
WAIT_S = 60.0
TOPIC = "capacity/frames"
#: of the broker, and of its clients
BROKER_CORE, CLIENT_CORE = 1, 0


@dataclass(frozen=True, slots=True)
class Model:
    """The broker's processor time of a frame in microseconds: ``base_us``, and a time for each KB of it.

    Each KB of a frame of more than ``LARGE`` bytes takes ``large_us`` more.
    """

    base_us: float
    kb_us: float
    large_us: float

    def time_us(self, size: int) -> float:
        """Return the time of a frame of this size in bytes."""
        per_kb = self.kb_us + (self.large_us if size > LARGE else 0.0)
        return self.base_us + per_kb * size / 1000

    def __str__(self) -> str:
        """Return the formula, with the size in KB."""
        above = self.kb_us + self.large_us
        return f"{self.base_us:.0f} + {self.kb_us:.3g} x KB; over 131 KB: {self.base_us:.0f} + {above:.3g} x KB"


def model_of_page(page: str, broker: str) -> Model:
    """Return the model that a page has for a broker. Raises HalimedeError where it has none."""
    number = r"([\d.]+)"
    row = rf"^\| {re.escape(broker)} \|.*\| {number} \+ {number} x KB; over 131 KB: {number} \+ {number} x KB \|"
    model = re.search(row, page, re.MULTILINE)
    if not model:
        raise HalimedeError(f"{PAGE.relative_to(ROOT)}: no model of {broker}: measure it first, without --sizes")
    base_us, kb_us, _, above_us = map(float, model.groups())
    return Model(base_us, kb_us, above_us - kb_us)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a broker, its times in microseconds by the size in bytes, and a model of them."""

    name: str
    times: Mapping[int, float]
    model: Model


async def measure(broker: BrokerProcess, size: int, seconds: float) -> float:
    """Return the broker's processor time of one frame of this size, in microseconds."""
    received = 0

    def receive(_: Packet) -> None:
        nonlocal received
        received += 1

    async with MqttBus("subscriber", broker.url) as subscriber, MqttBus("publisher", broker.url) as publisher:
        await asyncio.gather(subscriber.wait_connected(WAIT_S), publisher.wait_connected(WAIT_S))
        await subscriber.listen(TOPIC, 1, receive, 0)
        packet, ended = Packet(TOPIC, os.urandom(size)), asyncio.Event()

        async def publish() -> None:
            while not ended.is_set():
                await publisher.send(packet, WAIT_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(WINDOW):
                group.create_task(publish())
            await asyncio.sleep(WARM_S)
            assert broker.pid
            before, first = processor_ns(broker.pid), received
            await asyncio.sleep(seconds)
            used, count = processor_ns(broker.pid) - before, received - first
            ended.set()
    if not count:
        raise HalimedeError(f"no frame of {size} bytes arrived in {seconds:g} s")
    return used / count / 1000


def processor_ns(pid: int) -> int:
    """Return the processor time of a process and its descendants, in nanoseconds."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(nanoseconds(process.pid) for process in family)


async def measure_broker(
    installation: Installation, sizes: Sequence[int], rounds: int, seconds: float
) -> dict[int, float]:
    """Return the median over rounds by size, in microseconds."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="halimede-capacity-") as folder:
        os.sched_setaffinity(0, {BROKER_CORE})  # the broker inherits it
        broker = without_users(installation, Path(folder), free_port())
        try:
            await broker.start()
            os.sched_setaffinity(0, {CLIENT_CORE})
            await asyncio.sleep(SETTLE_S)
            for _ in range(rounds):
                for size in sizes:
                    times[size].append(await measure(broker, size, seconds))
        finally:
            await broker.stop()
    return {size: statistics.median(values) for size, values in times.items()}


def fit(times: Mapping[int, float]) -> Model:
    """Return the model that has the times of the fitted sizes."""
    low, middle, high = FITTED
    kb_us = (times[middle] - times[low]) / (middle - low) * 1000
    base_us = times[low] - kb_us * low / 1000
    return Model(base_us, kb_us, (times[high] - base_us) / high * 1000 - kb_us)


def misses(model: Model, times: Mapping[int, float]) -> dict[int, float]:
    """Return by how much a model differs from each size that is not fitted, as a share of the measured time."""
    return {size: model.time_us(size) / times[size] - 1 for size in times if size not in FITTED}


def table(rows: Sequence[Row]) -> str:
    """Return the table and the models in Markdown."""
    sizes = list(rows[0].times)
    head = ["broker", *(f"{size / 1000:g} KB" for size in sizes), "model, us"]
    head += [f"off at {size / 1000:g} KB" for size in sizes if size not in FITTED]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        rates = [f"{1e6 / time_us:,.0f}/s" for time_us in row.times.values()]
        offs = [f"{100 * off:+.0f} %" for off in misses(row.model, row.times).values()]
        lines.append([row.name, *rates, str(row.model), *offs])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bytes_of(text: str) -> list[int]:
    """Return sizes in bytes, from a list in KB such as "10,90"; none that the model is fitted on."""
    try:
        sizes = [round(float(size) * 1000) for size in text.split(",")]
    except (ValueError, OverflowError):
        sizes = [0]
    if any(size in FITTED or not 0 < size <= LARGEST for size in sizes):
        fitted = ", ".join(f"{size / 1000:g}" for size in FITTED)
        largest = f"{LARGEST / 1000:g}"
        raise argparse.ArgumentTypeError(f"{text}: give numbers of KB up to {largest}, such as 10,90, without {fitted}")
    return sizes


def main() -> int:
    """Measure all brokers; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.broker_capacity", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--brokers", type=Path, default=None, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="NAME", help="brokers whose name has this text")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=MEASURE_S, metavar="S", help="of a measurement (%(default)g)")
    parser.add_argument("--sizes", type=bytes_of, metavar="KB,KB", help="compare the models with other sizes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/scale.md")
    options = parser.parse_args()
    if options.sizes and options.write:
        parser.error("--write is for the sizes of the page: leave --sizes out")
    if (os.cpu_count() or 1) < 2:
        print("Error: broker and clients need a core each: this machine has one", file=sys.stderr)
        return 2
    log.configure("ERROR")
    sizes, page = sorted({*FITTED, *(options.sizes or COMPARED)}), PAGE.read_text()
    try:
        brokers = installations(options.brokers, options.only)
        published = {broker.name: model_of_page(page, broker.name) for broker in brokers if options.sizes}
    except HalimedeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    rows = []
    for broker in brokers:
        print(f"{broker.name} ...", flush=True)
        times = asyncio.run(measure_broker(broker, sizes, options.rounds, options.seconds))
        rows.append(Row(broker.name, times, fit(times)))
        if broker.name in published:
            rows.append(Row(f"{broker.name}, {PAGE.relative_to(ROOT)}", times, published[broker.name]))
    results.write(OUT, {row.name: row.times for row in rows})
    print(f"\n{table(rows)}\n\nframes a second of one core; written to {OUT}")
    if options.write:
        results.insert(PAGE, table(rows), BEGIN, END)
    return int(any(abs(off) > TOLERANCE for row in rows for off in misses(row.model, row.times).values()))


if __name__ == "__main__":
    sys.exit(main())
