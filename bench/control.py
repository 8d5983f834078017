"""GM with 100 to 3,000 nodes: an edit that reaches all of them, restarts of GM and broker, reports.

    python -m bench.control                      100, 300, 1,000 and 3,000 nodes (about ten minutes)
    python -m bench.control --nodes 100,300      a shorter run
    python -m bench.control --client lean        GM and nodes with halimede's MQTT client, not with paho
    python -m bench.control --write              the last run's table, into docs/performance.md

GM is the real process, the broker a real Mosquitto; the nodes are local controllers without workers, each with its own
connection and store (bench/control_nodes.py). For each size: an edit that goes to every node, until users read that
all have it; GM killed and started again; every node reporting once a second; the broker killed and started again.
Medians over the rounds, in a table, build/bench/control.json and a plot. Ends with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import resource
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from bench import results
from bench.control_idle import idle
from bench.control_run import measure
from bench.results import ROOT
from bench.targets import of_control
from halimede.bus.settings import CLIENT, Client

WRITTEN = results.FOLDER / "control.json"
#: what stands around the table there
BEGIN, END = "<!-- table of bench.control -->", "<!-- end of the table -->"
SIZES = (100, 300, 1000, 3000)
#: rounds, and those of sizes from ``MANY`` nodes on
ROUNDS, FEW, MANY = 3, 2, 3000
#: figures that grow with nodes, with the words of table and plot
GROWING = {
    "fanout_ack_s": "an insert to each node, all acknowledged, s",
    "gm_restart_sync_s": "GM killed and started, all synced, s",
    "reconnect_s": "broker killed and started, all back, s",
    "gm_rss_mb": "memory of GM, MB",
    "gm_cpu_s_per_1000_status": "processor of GM for 1,000 reports, s",
}
#: what else a table shows
BESIDE = {
    "storm_statuses_per_s": "reports a second meanwhile",
    "reconnect_busiest_tenth": "part that came back in the busiest 0.1 s",
    "fanout_gm_cpu_s": "processor of GM for an insert to each, s",
    "fanout_broker_cpu_s": "that of the broker, s",
    "fanout_nodes_cpu_s": "that of all nodes, s",
    "broker_rss_mb": "memory of the broker, MB",
    "nodes_rss_mb": "memory of all nodes, MB",
}


async def run(sizes: Sequence[int], rounds: int, idle_s: float, pace: float) -> dict[str, Any]:
    """Measure all sizes, then the parts of one node."""
    nodes = {}
    for size in sizes:
        nodes[str(size)] = await measure(size, min(rounds, FEW) if size >= MANY else rounds, say, pace)
    found: dict[str, Any] = {"nodes": nodes, **await idle(idle_s, min(idle_s, 6.0))}
    found["exponents"] = exponents(nodes)
    return found


def exponents(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return with which power of the number of nodes each figure grows: least squares over the logarithms."""
    if len(nodes) < 2:
        return {}
    return {
        name: round(slope([(math.log(int(n)), math.log(max(f[name], 1e-6))) for n, f in nodes.items()]), 3)
        for name in GROWING
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points, by least squares."""
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    return statistics.linear_regression(xs, ys).slope


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the figures as lines of Markdown."""
    sizes = list(found["nodes"])
    lines = [f"| nodes | {' | '.join(f'{int(n):,}' for n in sizes)} | exponent |", "|---" * (len(sizes) + 2) + "|"]
    for name, words in (GROWING | BESIDE).items():
        values = " | ".join(shown(found["nodes"][n][name]) for n in sizes)
        exponent = found["exponents"].get(name)
        lines.append(f"| {words} | {values} | {'' if exponent is None else f'{exponent:.2f}'} |")
    return lines


def shown(value: float) -> str:
    """Return a figure as people read it."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def page(found: Mapping[str, Any]) -> str:
    """Return what docs/performance.md shows: the table, and what the parts of one node hold."""
    worker = found["edge_worker_rss_mb"]
    beside = f", an edge worker with the small model of the digits example {worker:.0f} MB" if worker else ""
    rounds = " and ".join(str(len(figures["rounds"]["fanout_ack_s"])) for figures in found["nodes"].values())
    medians = f"Medians of {rounds} rounds, in the order of the columns."
    lc = f"An idle local controller holds {found['lc_rss_mb']:.0f} MB and takes {found['lc_idle_cpu_pct']:.2f} %"
    return "\n".join([*table(found), "", f"{medians} {lc} of a core{beside}."])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the times over the number of nodes."""
    import matplotlib as mpl  # noqa: PLC0415  # only where something is drawn

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    sizes = [int(n) for n in found["nodes"]]
    for name, marker in zip(list(GROWING)[:3], "osD", strict=True):
        axes.plot(sizes, [found["nodes"][str(n)][name] for n in sizes], marker=marker, label=GROWING[name])
    first = found["nodes"][str(sizes[0])]["fanout_ack_s"]
    axes.plot(sizes, [first * n / sizes[0] for n in sizes], color="0.7", linestyle=":", label="linear")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel("nodes")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def overhead_us() -> float:
    """Return what an easy sample costs over the model alone; it is measured in a bench of its own."""
    from bench.easy import measure as easy  # noqa: PLC0415  # a model's runtime, which the rest needs not

    return round(easy(), 1)


def say(line: str) -> None:
    """Tell how far it is."""
    print(line, file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    """Read ``100,300``."""
    return sorted({int(part) for part in text.split(",")})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.control", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=numbers, default=list(SIZES), metavar="N,N", help="default: 100,300,1000,3000")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    parser.add_argument("--client", choices=get_args(Client), default="paho", help="of GM and nodes (%(default)s)")
    parser.add_argument("--idle", type=float, default=15.0, metavar="S", help="seconds of watching an idle node")
    parser.add_argument(
        "--pace", type=float, default=1.0, metavar="F", help="what waits in between are multiplied with"
    )
    parser.add_argument("--no-samples", action="store_true", help="leave out what bench.easy measures")
    parser.add_argument("--write", action="store_true", help="put the last run's table into docs/performance.md")
    parser.add_argument("--out", type=Path, default=WRITTEN, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.write:
        shown_there = page(json.loads(options.out.read_text()))
        print(shown_there)
        results.insert(results.PERFORMANCE, shown_there, BEGIN, END)
        return 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.disable()  # others are measured, not our own pauses
    os.environ[CLIENT] = options.client
    found = asyncio.run(run(options.nodes, options.rounds, options.idle, options.pace))
    found["client"] = os.environ.pop(CLIENT)
    found["easy_sample_overhead_us"] = None if options.no_samples else overhead_us()
    results.write(options.out, found)
    picture = options.out.with_suffix(".png")
    draw(found, picture)
    if options.out == WRITTEN and options.nodes == list(SIZES):
        shutil.copy(picture, ROOT / "docs" / "control.png")
    print("\n".join(table(found)))
    targets = list(of_control(found))
    for target in targets:
        print("  " + "  ".join(f"{text:{width}}" for text, width in zip(target.row, (48, 18, 12, 6), strict=True)))
    print(f"written to {options.out}")
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
