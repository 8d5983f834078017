"""What 1 to 32 nodes that share frames answer: the real dispatcher, in simulated time.

    python -m bench.multi_edge                 1 to 32 nodes; about five minutes
    python -m bench.multi_edge --nodes 1,4     the same in short

What a packet costs is measured on Mosquitto first (``multi_edge_cost.py``). Then workers whose loops, offload clients,
servers and peers are the real ones share frames; a model call takes its time of the simulated clock, and so does each
packet at the broker and at either client, one after the other. One node is ten times slower than the others. More
frames come in than all of them can answer: at one node, at half of them, or at all. Writes build/bench/multi_edge.json
and the figure docs/balance.png; ends with 1 when less than nine tenths of the sum of capacities are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import structlog

from bench import results
from bench.multi_edge_cost import measure
from bench.results import ROOT
from tests.balance_world import Costs, fair, offered, rates, site
from tests.simulated import simulate

OUT, FIGURE = results.FOLDER / "multi_edge.json", ROOT / "docs" / "balance.png"
NODES = (1, 2, 3, 4, 8, 16, 32)
#: seconds that a frame takes a node, how many times that it takes the slow one, frames offered by capacity
SERVICE_S, SLOWER, LOAD = 0.03, 10, 1.1
TARGET = 0.9
CAMERAS = {"one": "at one node", "half": "at half of the nodes", "every": "at every node"}
ALONE = "at half of the nodes, not shared"


async def run(nodes: int, cameras: str, costs: Costs, seconds: float, *, share: bool = True) -> dict[str, Any]:
    """Simulate one site; return what it answered."""
    times = [SERVICE_S] * nodes
    if nodes > 1:
        times[-1] *= SLOWER
    async with site(times, costs=costs, share=share) as made:
        broker, clock = made.nodes["w0"].bus.at_broker, asyncio.get_running_loop()
        busy_s, began = broker.busy_s, clock.time()
        answered = await offered(made, rates(made, cameras, LOAD), seconds=seconds)
        total, parts = sum(made.answered.values()), fair(made)
        ms = sorted(made.ms)
        return {
            "nodes": nodes,
            "cameras": cameras,
            "share": share,
            "capacity": round(made.capacity, 1),
            "answered": round(answered, 1),
            "of_capacity": round(answered / made.capacity, 3),
            "by_peers": round(made.by["peer"] / total, 3),
            #: frames that some other node should have answered, were shares those of the capacities
            "misplaced": round(sum(abs(made.answered[name] / total - part) for name, part in parts.items()) / 2, 3),
            "twice": sum(copies > 1 for copies in made.ids.values()),
            "p50_ms": round(ms[len(ms) // 2]),
            "p99_ms": round(ms[int(len(ms) * 0.99)]),
            "broker_busy": round((broker.busy_s - busy_s) / (clock.time() - began), 3),
        }


def show(row: dict[str, Any]) -> None:
    where = CAMERAS[row["cameras"]] if row["share"] else ALONE
    print(
        f"{row['nodes']:>3} nodes, frames {where:<33} {row['answered']:>7.1f} of {row['capacity']:>7.1f} a second"
        f" ({row['of_capacity']:.3f}), by peers {row['by_peers']:.2f}, misplaced {row['misplaced']:.3f},"
        f" broker busy {row['broker_busy']:.3f}",
        flush=True,
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw what was answered over the number of nodes."""
    import matplotlib as mpl  # noqa: PLC0415  # only where something is drawn

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    nodes = sorted({row["nodes"] for row in rows})
    capacity = {row["nodes"]: row["capacity"] for row in rows}
    left.plot(nodes, [capacity[n] for n in nodes], color="0.6", linestyle="--", label="sum of capacities")
    lines = [(name, text, True) for name, text in CAMERAS.items()] + [("half", ALONE, False)]
    for (name, text, share), marker in zip(lines, "osDx", strict=True):
        mine = [row for row in rows if (row["cameras"], row["share"]) == (name, share)]
        over = [row["nodes"] for row in mine]
        left.plot(over, [row["answered"] for row in mine], marker=marker, label=f"frames come in {text}")
        right.plot(over, [row["of_capacity"] for row in mine], marker=marker)
    right.axhline(TARGET, color="0.6", linestyle=":")
    right.text(nodes[0], TARGET - 0.04, f"{TARGET}", color="0.4")
    for axes, title in ((left, "frames answered a second"), (right, "part of the sum of capacities")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(nodes, [str(n) for n in nodes])
        axes.set_xlabel("nodes, one of them ten times slower")
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_yscale("log", base=2)
    ticks = [capacity[n] for n in nodes if n != 2]  # too close to the one below
    left.set_yticks(ticks, [f"{tick:.0f}" for tick in ticks])
    right.set_ylim(0, 1.05)
    left.legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Measure, simulate and draw; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.multi_edge", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="how many, separated by commas")
    parser.add_argument("--asks", type=int, default=5000, help="with which the costs are measured (default 5000)")
    parser.add_argument("--seconds", type=float, default=4.0, help="simulated, of each site (default 4)")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="where the figure goes (default docs/balance.png)")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    costs, found = asyncio.run(measure(given.asks))
    print(json.dumps(found, indent=2))
    rows: list[dict[str, Any]] = []
    for nodes in map(int, given.nodes.split(",")):
        for cameras, share in [*((name, True) for name in CAMERAS), ("half", False)]:
            rows.append(simulate(run(nodes, cameras, costs, given.seconds, share=share)))
            show(rows[-1])
    results.write(OUT, {"costs": found, "load": LOAD, "service_ms": SERVICE_S * 1000, "sites": rows})
    draw(rows, given.figure)
    missed = [row for row in rows if row["share"] and (row["of_capacity"] < TARGET or row["twice"])]
    print(f"target: {TARGET} of the sum of capacities, nothing twice: {'MISSED' if missed else 'ok'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
