"""What ``bench.offload`` found: medians, the table, the targets, the plot, and the table of docs/performance.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.peers import WAYS
from bench.targets import of_offload

OURS = "halimede"
#: what stands around the table in docs/performance.md
BEGIN, END = "<!-- tables of bench.offload -->", "<!-- end of the tables -->"
PROCESSES = ("client", "server", "broker")


def summary(found: Mapping[tuple[int, str, int], list[dict[str, float]]], flight: int) -> dict[str, Any]:
    """Return medians over the rounds, and the least and the greatest, by payload and way.

    ``cpu_us``: processor time of a sample with ``flight`` of them under way, by process.
    """
    payloads: dict[str, dict[str, Any]] = {}
    for size, way in sorted({key[:2] for key in found}, key=lambda key: (key[0], WAYS.index(key[1]))):
        if not found.get((size, way, 1)) or not found.get((size, way, flight)):
            continue  # it broke before
        rtts = [each["rtt_ms"] for each in found[size, way, 1]]
        many = found[size, way, flight]
        rates = [each["rate"] for each in many]
        payloads.setdefault(str(size), {})[way] = {
            "rtt_ms": round(statistics.median(rtts), 4),
            "rate": round(statistics.median(rates), 2),
            "spread": {"rtt_ms": _ends(rtts, 4), "rate": _ends(rates, 2)},
            "cpu_us": {name: _median(name, many) for name in PROCESSES if name in many[0]},
        }
    return {"payloads": payloads}


def _median(name: str, rounds: Iterable[Mapping[str, float]]) -> float:
    return round(statistics.median(each[name] for each in rounds), 1)


def _ends(values: Iterable[float], digits: int) -> list[float]:
    ordered = sorted(values)
    return [round(ordered[0], digits), round(ordered[-1], digits)]


HEADS = ("", "rtt ms", "", "x ours", "answers/s", "", "ours x", "us of CPU")
WIDTHS = (-14, 10, 20, 9, 11, 16, 9, 11)


def table(found: Mapping[str, Any]) -> str:
    """Return the figures for a terminal: medians, in brackets least and greatest, and ratios to ours."""
    lines = []
    for size, ways in found["payloads"].items():
        lines += ["", f"{int(size):,} bytes", _line(HEADS, WIDTHS) + f" = {' + '.join(PROCESSES)}"]
        for way, row in ways.items():
            slower, faster = _ratios(row, ways.get(OURS))
            rtt, rate = row["spread"]["rtt_ms"], row["spread"]["rate"]
            spread = f"({rtt[0]:.3f}-{rtt[1]:.3f})", f"({rate[0]:.0f}-{rate[1]:.0f})"
            cells = (way, f"{row['rtt_ms']:.3f}", spread[0], slower, f"{row['rate']:.0f}", spread[1], faster)
            cpu = row["cpu_us"].values()
            lines.append(_line((*cells, f"{sum(cpu):.0f}"), WIDTHS) + f" = {' + '.join(f'{each:.0f}' for each in cpu)}")
    if rows := [target.row for target in of_offload(found)]:
        widths = (-58, 16, 12, 8)
        lines += ["", *(_line(row, widths) for row in [("target", "asked", "measured", ""), *rows])]
    return "\n".join(lines)


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    """Set cells in columns; a negative width is one that begins at the left."""
    aligned = (
        cell.ljust(-width) if width < 0 else cell.rjust(width) for cell, width in zip(cells, widths, strict=True)
    )
    return "".join(aligned).rstrip()


def _ratios(row: Mapping[str, float], ours: Mapping[str, float] | None) -> tuple[str, str]:
    """Return how many times as long a way's round trip is, and how many times as many answers ours gives."""
    if ours is None:
        return "", ""
    return f"{row['rtt_ms'] / ours['rtt_ms']:.2f}", f"{ours['rate'] / row['rate']:.2f}"


def markdown(found: Mapping[str, Any]) -> str:
    """Return the table of docs/performance.md."""
    payloads = found["payloads"]
    names = list(dict.fromkeys(way for ways in payloads.values() for way in ways))
    lines = [
        "| way | " + " | ".join(f"{int(size):,} B" for size in payloads) + " |",
        "|---" * (len(payloads) + 1) + "|",
    ]
    for way in names:
        cells = (_cell(ways.get(way)) for ways in payloads.values())
        lines.append(f"| {f'**{way}**' if way == OURS else way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Mapping[str, float] | None) -> str:
    if row is None:
        return ""
    rtt, rate = row["rtt_ms"], row["rate"]
    return f"{rtt:.2f} ms, {rate:,.0f}/s" if rate >= 10 else f"{rtt:.0f} ms, {rate:.1f}/s"


def plot(found: Mapping[str, Any], to: Path) -> None:
    """Draw round trips and rates over the size of a sample."""
    import matplotlib as mpl  # noqa: PLC0415  # half a second that a short run need not take

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    payloads = found["payloads"]
    sizes = [int(size) for size in payloads]
    names = list(dict.fromkeys(way for ways in payloads.values() for way in ways))
    figure, sides = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for number, way in enumerate(names):
        style: dict[str, Any] = {"color": f"C{number}", "marker": "o", "markersize": 4, "linewidth": 1.2}
        if way == OURS:
            style |= {"color": "black", "linewidth": 3, "markersize": 7, "zorder": 5}
        for side, what in zip(sides, ("rtt_ms", "rate"), strict=True):
            side.plot(sizes, [payloads[str(size)].get(way, {}).get(what) for size in sizes], label=way, **style)
    for side, title in zip(sides, ("round trip, one in flight (ms)", "answers a second, 16 in flight"), strict=True):
        side.set(xscale="log", yscale="log", title=title, xlabel="bytes of a sample")
        side.set_xticks(sizes, [f"{size / 1000:.3g} KB" for size in sizes])
        side.minorticks_off()
        side.grid(alpha=0.3)
    figure.legend(*sides[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(to, dpi=110)
    plt.close(figure)
