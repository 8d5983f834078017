"""The sentences of the page, with the figures of the run in them. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from examples.multi_edge import report
from examples.multi_edge.measure import FRAGMENT
from examples.multi_edge.report import Told
from halimede.html_report.page import tile

HONEST = """Frames are counted where cameras publish them: one that is published and has no result is lost, whoever
may have dropped it. All parts run on one machine, as processes of their own over one MQTT broker. The films are made of
real pictures; nobody told the system where objects are or who they are. Its models learnt from other places of the same
photographs and from other digits: what is in the films they have never seen. Waits are from the moment that a picture
was taken until its result was on the bus."""


def tiles(found: Mapping[str, Any]) -> list[str]:
    """Return what people read first: the figures that were asked for, and whether they were met."""
    gain = found["fused_accuracy"] - found["single_best_accuracy"]
    off, took = report.worst_off(found), found["takeover_s"]
    lost, frames = found["lost"], found["frames"]
    return [
        tile(f"{lost}", f"of {frames:,} frames lost", "none may be", met=lost == 0),
        tile(f"{found['rank1']:.3f}", "rank-1 between views", "0.95 wanted", met=found["rank1"] >= report.LEAST_RANK1),
        tile(f"{found['idf1']:.3f}", "IDF1 over all cameras", "0.90 wanted", met=found["idf1"] >= report.LEAST_IDF1),
        tile(f"{gain:+.3f}", "accuracy by fusion", "+0.03 over the best alone wanted", met=gain >= report.LEAST_GAIN),
        tile(f"{off:.1%}", "off a fair share, at most", "within 10 % wanted", met=off <= report.MOST_OFF),
        tile("never" if took is None else f"{took:.2f} s", "until others took over", "within 3 s wanted",
             met=took is not None and took <= report.MOST_TAKEOVER_S),
    ]  # fmt: skip


def intro(told: Told, found: Mapping[str, Any]) -> str:
    """Say what was run."""
    return (
        f"Three nodes worked together on what three cameras saw in {len(told.runs)} scenes, over an MQTT broker and "
        f"with no cloud: {found['frames']:,} frames came in and {found['answered']:,} were answered. In the first two "
        f"scenes half of the answers came within {found['p50_ms']:g} ms of the picture, 99 of 100 within "
        f"{found['p99_ms']:g} ms. In the last scene one of the nodes was killed."
    )


def street(told: Told, found: Mapping[str, Any]) -> str:
    """Say how well objects were told apart."""
    street = told.street
    return (
        "Twelve objects, cut from real photographs, cross a plane that three cameras see from above, each in its own "
        f"light: a lamp goes on, a cloud passes, it gets dark. The system found {street.identities} of them and told "
        f"them apart: IDF1 {street.idf1:.3f}, and in {found['rank1']:.1%} of all cases the picture of another camera "
        "that is most like an object's shows the same object."
        + (f" {street.fragments} more identities were given to fewer than {FRAGMENT} boxes each, mostly two objects "
           "that one box held; they count as wrong." if street.fragments else "")
    )  # fmt: skip


def asked(told: Told, found: Mapping[str, Any], picture: str) -> str:
    """Show the question that was put to the system by a photograph, and its answer."""
    right = found["asked_found"] == told.asked[0]
    said = "It is the one whose path is drawn below." if right else "That is somebody else."
    return (
        f'<div class="asked"><img alt="{html.escape(told.asked[0])}" src="data:image/jpeg;base64,{picture}"><div>'
        "<p>Then it was shown a picture of one of them as it was before any camera saw it: who looks like this, and "
        f"where was it seen? {said}</p>"
        "<pre>$ halimede seen street --picture portrait.png --model 1-embedder.yaml --limit 3\n"
        f"{html.escape(told.asked[1])}</pre></div></div>"
    )


def board(told: Told) -> str:
    """Say what is fused."""
    return (
        f"A board shows {len(told.shown.labels)} handwritten digits, one after the other, that no model has seen "
        "before. One camera has rain on its lens, one has dusk, one shakes. Each node reads the digit alone; where "
        "findings come together their probabilities are multiplied, by when the pictures were taken."
        + (f" {told.board.incomplete} instants were answered without all cameras." if told.board.incomplete else "")
    )


def gain(told: Told, found: Mapping[str, Any]) -> str:
    """Say what fusion gained."""
    gain = told.board.fused - told.board.best
    wrong = (1 - told.board.fused) / max(1 - told.board.best, 1e-9)
    return (
        f"<p>The best camera alone is right in <b>{told.board.best:.1%}</b> of {found['complete_instants']} instants, "
        f"all three together in <b>{told.board.fused:.1%}</b>: {gain:+.1%}. Of ten mistakes that the best one makes "
        f"{10 * wrong:.0f} are left.</p>"
    )


def belt(told: Told) -> str:
    """Say how the load was made."""
    speeds = ", ".join(f"{node} {wait:g} ms" for node, wait in told.wait_ms.items())
    full = told.runs["full"]
    capacity = sum(1000 / wait for wait in told.wait_ms.values())
    return (
        f"Each node has a camera of {full.fps:g} frames a second, but not each can do as much: {speeds} a frame, "
        f"{capacity:.0f} frames a second together. These speeds are made up, since all three run on one machine: "
        "an estimator of the user's own waits that long around the ONNX model. Who has less to do takes frames of "
        "those who have more, by what they say of their load."
    )


def kill(told: Told, found: Mapping[str, Any]) -> str:
    """Say what became of the frames of the node that was killed."""
    killed = told.killed
    if killed.takeover_s is None:
        return f"{told.victim} was killed, and nobody took over."
    back = (
        f" {killed.back_s:.1f} s after the kill {told.victim} was back and took its camera again."
        if killed.back_s
        else ""
    )
    held = f" Frames that it had taken in and others answered: {killed.held}." if killed.held else ""
    lost = "None was lost." if not found["lost"] else f"{found['lost']} frames were lost in the run."
    return (
        f"In the middle of another film the strongest node, {told.victim}, was killed: its controller and its "
        f"workers, {told.processes} processes, with SIGKILL. The others took over its camera, and the first of its new "
        f"frames was answered <b>{killed.takeover_s:.2f} s</b> after the kill.{held} The longest wait of any frame of "
        f"that camera was {killed.longest_s:.2f} s. {lost}{back}"
    )
