"""What is asked of the sample path and of the control plane, and whether the last runs of the benchmarks show it.

Ratios are taken within one run only. A target whose figures are not there (a way that was left out, a benchmark that
did not run) is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MIDDLE, LARGE = "150528", "921600"


@dataclass(frozen=True, slots=True)
class Target:
    """One line: ``limit`` is the least that is asked, or with ``most`` the most."""

    what: str
    limit: float
    unit: str
    measured: float
    most: bool = False

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.measured <= self.limit if self.most else self.measured >= self.limit

    @property
    def row(self) -> tuple[str, str, str, str]:
        """What it asks, how much, what was measured, and the verdict."""
        bound = f"{'at most' if self.most else 'at least'} {self.limit:g}{self.unit}"
        return self.what, bound, f"{self.measured:.3g}{self.unit}", "met" if self.met else "MISSED"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our figure in relation to that of another way: a shorter round trip or a higher rate. ``bbr``: its limit there.

    BBR paces every socket, and a sample passes twice as many of them through a broker as without one.
    """

    size: str
    figure: str
    other: str
    limit: float
    bbr: float | None = None

    def limit_under(self, congestion_control: str) -> float:
        """Return the limit in a network with this congestion control."""
        return self.bbr if self.bbr is not None and congestion_control == "bbr" else self.limit


RATIOS = (
    Ratio(MIDDLE, "rtt_ms", "sedna_http", 150.0),
    Ratio(MIDDLE, "rate", "sedna_http", 250.0),
    Ratio(LARGE, "rtt_ms", "sedna_http", 300.0),
    Ratio(LARGE, "rate", "sedna_http", 600.0),
    Ratio(MIDDLE, "rate", "mlserver_grpc", 15.0),
    Ratio(MIDDLE, "rate", "libmosquitto", 0.62, bbr=0.82),
    Ratio(MIDDLE, "rate", "grpc_aio", 1.3, bbr=1.5),
    Ratio(MIDDLE, "rate", "grpc_aio_model", 1.4, bbr=1.6),
    Ratio(MIDDLE, "rate", "paho", 1.5),
    Ratio(MIDDLE, "rate", "aiomqtt", 2.5),
)
#: payload, with whom, our round trip in times of theirs
MOST = ((MIDDLE, "grpc_aio_model", 0.8), (MIDDLE, "tcp", 5.0))


def of_offload(found: Mapping[str, Any]) -> Iterator[Target]:
    """Say what ``offload.json`` shows. The congestion control of its network decides which limits hold."""
    congestion_control = found.get("where", {}).get("congestion_control", "")
    for ratio in RATIOS:
        ways = found["payloads"].get(ratio.size, {})
        if "halimede" in ways and ratio.other in ways:
            ours, theirs = ways["halimede"][ratio.figure], ways[ratio.other][ratio.figure]
            better = theirs / ours if ratio.figure == "rtt_ms" else ours / theirs
            limit = ratio.limit_under(congestion_control)
            yield Target(f"{int(ratio.size):,} bytes: {_comparison(ratio, limit)} {ratio.other}", limit, " x", better)
    for size, other, limit in MOST:
        ways = found["payloads"].get(size, {})
        if "halimede" in ways and other in ways:
            part = ways["halimede"]["rtt_ms"] / ways[other]["rtt_ms"]
            yield Target(f"{int(size):,} bytes: round trip, of {other}'s", limit, " x", part, most=True)


def _comparison(ratio: Ratio, limit: float) -> str:
    if ratio.figure == "rtt_ms":
        return "a round trip shorter than"
    return "more answers a second than" if limit >= 1 else "answers a second, of those of"


#: where a figure stands in ``control.json``, what it is, the most that it may be


def with_client(found: Mapping[str, Any], client: str) -> dict[str, Any]:
    """Return the figures of 1,000 nodes, if GM and nodes had this MQTT client. Raises KeyError."""
    if found["client"] != client:
        raise KeyError(client)
    figures: dict[str, Any] = found["nodes"]["1000"]
    return figures


CONTROL: tuple[tuple[Callable[[Mapping[str, Any]], Any], str, float, str], ...] = (
    (lambda c: c["easy_sample_overhead_us"], "an easy sample, over the bare session.run", 50, " us"),
    (lambda c: with_client(c, "paho")["fanout_ack_s"], "1,000 nodes: an insert each, acknowledged", 0.75, " s"),
    (lambda c: with_client(c, "lean")["fanout_ack_s"], "1,000 nodes: an insert each, acknowledged", 0.5, " s"),
    (lambda c: c["nodes"]["1000"]["gm_restart_sync_s"], "1,000 nodes: GM restarted, all synced", 3, " s"),
    (lambda c: max(c["exponents"].values()), "growth with nodes: the steepest exponent", 1.1, ""),
    (lambda c: c["lc_rss_mb"], "LC: resident memory", 60, " MB"),
    (lambda c: c["lc_idle_cpu_pct"], "LC: idle, of a core", 0.5, " %"),
    (lambda c: c["edge_worker_rss_mb"], "edge worker: resident memory", 160, " MB"),
)


def of_control(found: Mapping[str, Any]) -> Iterator[Target]:
    """Say what ``control.json`` shows."""
    for read, what, limit, unit in CONTROL:
        try:
            measured = read(found)
        except (KeyError, ValueError):
            continue  # a run without it
        if measured is not None:
            yield Target(what, limit, unit, float(measured), most=True)


#: our way to a model's input, and milliseconds that a call may block an event loop
INPUT, LOOP_MS = "scaled, linear", 5.0


def of_camera(found: Mapping[str, Any]) -> Iterator[Target]:
    """Say what ``camera.json`` shows."""
    for row in found.get("ratios", ()):
        if row["ours"] == INPUT:
            what = f"{row['case']}: processor time a frame, of OpenCV"
            yield Target(f"{what} with whole decoding", row["limit"], " x", row["to_whole"], most=True)
            yield Target(f"{what} with the cheaper decoding", row["limit"], " x", row["to_best"], most=True)
    for count, systems in found.get("systems", {}).items():
        for name, row in systems.items():
            if "loop" in row:
                what = f"{name}, {count} x 1080p: longest call on the event loop, processor time"
                yield Target(what, LOOP_MS, " ms", row["loop"]["longest_cpu_ms"], most=True)
                what = f"{name}, {count} x 1080p: frames that no counter explains"
                yield Target(what, 0, "", row["unexplained"], most=True)
