"""A Dataset of one node on ten others: seconds, the bytes that its node sends, and what a change and a crash cost.

    python -m bench.copies                                 1 GB: as a thousand files, and as one
    python -m bench.copies --megabytes 50 --nodes 3        the same in short

GM, eleven LCs and a Mosquitto, as shipped, on this machine: the broker passes every byte on. With a thousand files one
of them is changed afterwards, and the whole is done once more with a broker that is killed halfway. Ends with 1 when
the node that has the data sends more than 1.1 times its bytes, or more than one file and the list of all for a change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.children import ROOT
from halimede import log, topics
from halimede.bus import Delivery
from halimede.messages import Status, StatusDocument
from tests.faults.control import Control, control
from tests.integration.gm_world import dataset

WRITTEN = ROOT / "build" / "bench" / "copies.json"
#: bytes from the source at most, as a share of the data; seconds that one copy of all may take
SHARE, LONGEST = 1.1, 900.0
SENT = re.compile(r"^halimede_lc_sent_bytes_total ([0-9.e+]+)$", re.MULTILINE)


class Fleet:
    """A node with data, and nodes that copy it."""

    def __init__(self, plane: Control, data: Path, nodes: int) -> None:
        self.plane, self.data, self.nodes = plane, data, nodes
        self.status = Status()
        self._generation = 0

    async def start(self) -> None:
        """Start the nodes, each with a folder of its own."""
        await self.plane.operator.subscribe(topics.STATUS.filter(plural="datasets"), self._hear)
        for number in range(self.nodes + 1):
            home = self.plane.folder / f"edge{number}"
            self.plane.lc_process(f"edge{number}", home=home, labels=["zone=a"] if number else [])
        await self.plane.until(lambda: len({each.node for each in self.plane.presences}) == self.nodes + 1)

    async def _hear(self, delivery: Delivery[StatusDocument]) -> None:
        self.status = delivery.body.status

    async def copied(self, *, crash: bool = False) -> dict[str, Any]:
        """Apply the Dataset, and wait until all nodes have it; return seconds and bytes."""
        before, began = await self.sent(), time.perf_counter()
        self._generation += 1
        # another spelling is an edit: the node looks at its files at once, not within ten minutes
        form = ("txt", "TXT")[self._generation % 2]
        spec = {"url": str(self.data), "nodeName": "edge0", "syncTo": {"zone": "a"}, "format": form}
        await self.plane.apply(dataset("frames", **spec))
        if crash:
            await self.plane.until(lambda: re.search("[3-9][05] % of", str(self.status)), LONGEST)
            await self.plane.broker.restart()
        await self.plane.until(self._ready, LONGEST)
        took = time.perf_counter() - began
        sent = [now - then for now, then in zip(await self.sent(), before, strict=True)]
        return {"seconds": round(took, 1), "source_mb": sent[0] / 1e6, "most_of_a_copy_mb": max(sent[1:]) / 1e6}

    def _ready(self) -> bool:
        status = self.status
        return status.phase == "Ready" and (status.observed_generation, status.active) == (
            self._generation,
            self.nodes + 1,
        )

    async def sent(self) -> list[float]:
        """Return the bytes that each node has sent, the source first."""
        places = {each.node: each.http for each in self.plane.presences if each.online}
        return [await asyncio.to_thread(_sent, places[f"edge{number}"]) for number in range(self.nodes + 1)]


def _sent(http: str) -> float:
    with urllib.request.urlopen(f"{http}/metrics", timeout=30) as answer:
        found = SENT.search(answer.read().decode())
    if found is None:
        raise SystemExit(f"{http} has no halimede_lc_sent_bytes_total")
    return float(found[1])


async def bench(megabytes: int, nodes: int, files: int, *, crash: bool) -> dict[str, Any]:
    """Copy a dataset of so many files; return what was measured."""
    with tempfile.TemporaryDirectory(prefix="halimede-bench-", dir=ROOT / "build") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        size = megabytes * 1_000_000 // files
        for number in range(files):
            (data / f"{number}.txt").write_bytes(os.urandom(size // 2).hex().encode())
        async with control(Path(folder)) as plane, plane.gm():
            fleet = Fleet(plane, data, nodes)
            await fleet.start()
            found = {"files": files, "broker_killed": crash, **await fleet.copied(crash=crash)}
            found["share"] = round(found["source_mb"] / megabytes, 3)
            if files > 1 and not crash:
                (data / "7.txt").write_bytes(os.urandom(size // 2).hex().encode())
                found["one_changed"] = changed = await fleet.copied()
                changed["files_sent"] = round((changed["source_mb"] * 1e6 - _listing_bytes(folder)) / size, 2)
            return found


def _listing_bytes(folder: str) -> int:
    return next(Path(folder).glob("edge0/nodes/edge0/datasets/*.listing")).stat().st_size


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the figures; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.copies", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=10)
    options = parser.parse_args(arguments)
    (ROOT / "build").mkdir(exist_ok=True)
    runs = []
    for files, crash in ((1000, False), (1, False), (1000, True)):
        runs.append(asyncio.run(bench(options.megabytes, options.nodes, files, crash=crash)))
        print(json.dumps(runs[-1]), file=sys.stderr)
    met = all(run["share"] <= SHARE for run in runs) and runs[0]["one_changed"]["files_sent"] <= SHARE
    found = {"megabytes": options.megabytes, "nodes": options.nodes, "runs": runs, "share": SHARE, "met": met}
    text = json.dumps(found, indent=2)
    WRITTEN.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.write_text(text + "\n")
    print(text)
    return 0 if met else 1


if __name__ == "__main__":
    log.configure("ERROR")
    sys.exit(main())
