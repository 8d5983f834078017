"""The tables of bench.camera: for a terminal, and for docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.targets import of_camera

#: what stands around the tables in docs/performance.md
BEGIN, END = "<!-- tables of bench.camera -->", "<!-- end of the tables of bench.camera -->"

#: the scale in the name of a variant, which differs between cases
REDUCED = re.compile(r" to 1/\d$")

#: systems of halimede
OURS = ("halimede", "joint-model")

Rows = list[tuple[str, ...]]


def input_rows(costs: Mapping[str, Mapping[str, Any]], ratios: Iterable[Mapping[str, Any]]) -> Rows:
    """Return a row for each way from a JPEG to a model's input, with ours as shares of OpenCV's."""
    shares = {(row["case"], row["ours"]): row for row in ratios}
    rows: Rows = [("frame", "read by", "ms", "spread", "of OpenCV whole", "of OpenCV best", "MB", "difference")]
    for case, variants in costs.items():
        for name, row in variants.items():
            share = shares.get((case, name))
            share_cells = (f"{share['to_whole']:.2f}", f"{share['to_best']:.2f}") if share else ("", "")
            spread = "{:.2f} to {:.2f}".format(*row["spread"])
            rows.append((case, input_name(name), f"{row['ms']:.2f}", spread, *share_cells, f"{row['memory_mb']:.1f}",
                         f"{row['difference']:.4f}"))  # fmt: skip
    return rows


def input_name(variant: str) -> str:
    """Return the name of a variant with whose it is."""
    return variant if variant.startswith("OpenCV") else f"halimede {variant}"


def film_rows(costs: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Return a row for each way from a frame of a film to a JPEG."""
    rows: Rows = [("film, 1080p", "read by", "ms", "spread", "kB of a JPEG")]
    for codec, readers in costs.items():
        for name, row in readers.items():
            size = f"{row['jpeg_bytes'] / 1000:.0f}" if row["jpeg_bytes"] else ""
            rows.append((codec, name, f"{row['ms']:.2f}", "{:.2f} to {:.2f}".format(*row["spread"]), size))
    return rows


def system_rows(systems: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Return a row for each system and number of cameras."""
    rows: Rows = [("cameras", "system", "frames/s", "CPU ms a frame", "age p50, p99 ms", "min/max", "MB slow, full",
                   "loop ms", "answered, dropped, unexplained")]  # fmt: skip
    for count, by_name in systems.items():
        for name, row in by_name.items():
            costs = " + ".join(f"{ms:.1f} {process}" for process, ms in row["cpu_ms"].items())
            loop = f"{row['loop']['longest_cpu_ms']:.1f}" if "loop" in row else ""
            dropped = "".join(f", {drops:.0f} {text}" for text, drops in row["dropped"].items() if drops)
            frames = f"{row['answered']:.0f} of {row['offered']:.0f}{dropped}"
            frames += f", {row['unexplained']:.0f} unexplained" if row["unexplained"] else ""
            rows.append((count, name, f"{row['rate']:.1f}", costs,
                         f"{row['age_p50_ms']:.0f}, {row['age_p99_ms']:.0f}", f"{row['fairness']:.2f}",
                         "{slow:.0f}, {full:.0f}".format(**row["memory_mb"]), loop, frames))  # fmt: skip
    return rows


def ratio_rows(systems: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Return a row for each of our systems: rate and processor time, without the cameras', relative to OpenCV's."""
    rows: Rows = [("cameras", "system", "frames/s: x opencv", "x opencv-processes", "CPU a frame: x opencv")]
    for count, by_name in systems.items():
        loop, processes = by_name.get("opencv"), by_name.get("opencv-processes")
        for name, row in by_name.items():
            if loop and name.startswith(OURS):
                spread = f"{row['rate'] / processes['rate']:.2f}" if processes and processes["rate"] else ""
                rate = f"{row['rate'] / loop['rate']:.2f}" if loop["rate"] else ""
                rows.append((count, name, rate, spread, f"{_cpu_ms(row) / _cpu_ms(loop):.2f}"))
    return rows


def _cpu_ms(row: Mapping[str, Any]) -> float:
    return float(sum(ms for process, ms in row["cpu_ms"].items() if process != "cameras"))


def memory_a_camera(systems: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return by system the resident memory that each further camera takes while all of them send slowly."""
    few, many = min(systems, key=int, default=""), max(systems, key=int, default="")
    if few == many:
        return {}
    more = int(many) - int(few)
    return {
        name: round((row["memory_mb"]["slow"] - systems[few][name]["memory_mb"]["slow"]) / more, 1)
        for name, row in systems[many].items()
        if name in systems[few]
    }


def tables(measured: Mapping[str, Any]) -> list[Rows]:
    """Return all tables that a run has figures for."""
    all_rows = []
    if costs := measured.get("input"):
        all_rows.append(input_rows(costs, measured["ratios"]))
    if costs := measured.get("film"):
        all_rows.append(film_rows(costs))
    if systems := measured.get("systems"):
        all_rows += [system_rows(systems), ratio_rows(systems)]
        if growth := memory_a_camera(systems):
            all_rows.append(
                [("system", "MB for one more camera"), *((name, f"{mb:.1f}") for name, mb in growth.items())]
            )
    if targets := [target.row for target in of_camera(measured)]:
        all_rows.append([("target", "asked", "measured", ""), *targets])
    return all_rows


def printed(measured: Mapping[str, Any]) -> str:
    """Return the tables for a terminal."""
    texts = [("system", ""), *measured.get("texts", {}).items()]
    return "\n\n".join([described(measured), *map(_columns, tables(measured)), _columns(texts)])


def markdown(measured: Mapping[str, Any]) -> str:
    """Return short tables for a page: those of costs have a row for each case."""
    sections = [described(measured)]
    if costs := measured.get("input"):
        named = {case: {input_name(name): row for name, row in rows.items()} for case, rows in costs.items()}
        sections.append(_page_table("ms of processor time", named))
    if costs := measured.get("film"):
        sections.append(_page_table("1080p to JPEG, ms of processor time", costs))
    if systems := measured.get("systems"):
        sections.append(_page_rows(system_rows(systems)))
    return "\n\n".join(sections)


def _page_table(heading: str, costs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a row for each variant, and a column for each case."""
    columns = [{REDUCED.sub("", name): f"{row['ms']:.1f}" for name, row in rows.items()} for rows in costs.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    return _page_rows([(heading, *costs), *((name, *(column.get(name, "") for column in columns)) for name in names)])


def _page_rows(rows: Rows) -> str:
    heading, *body = rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heading, ("---",) * len(heading), *body))


def described(measured: Mapping[str, Any]) -> str:
    """Return what was measured, and where."""
    where = measured["where"]
    texts = [
        f"{name}: {min(sizes) / 1000:.0f} to {max(sizes) / 1000:.0f} kB a JPEG"
        for name, sizes in measured["jpeg_bytes"].items()
    ]
    texts.append(
        f"{measured['rounds']} interleaved rounds on {where['cores']} cores, load {where['load']:.1f} at the start"
    )
    if "systems" in measured:
        texts.append(f"Detector: {measured['detector']}; each camera sends {measured['fps']:g} frames a second for "
                     f"{measured['seconds']:g} s; models and OpenCV run with one thread")  # fmt: skip
    return ". ".join(texts) + "."


def _columns(rows: Rows) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
