"""Draws the charts of a run as one SVG, in light and in dark colours: the picture of the README.

python -m examples.real_pairs.picture build/demo-faces/report.json docs/demo-faces.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from examples.real_pairs import report
from examples.real_pairs.page import accuracy_charts, size
from examples.real_pairs.pairs import PAIRS
from halimede.html_report import charts

#: of the whole picture; where the second chart begins, and the lines below the first one
WIDTH, HEIGHT, RIGHT, TOP, BELOW = 1060, 330, 540, 62, 225
#: of texts and axes, as on the page of a report
STYLE = """text { fill: var(--soft); font-family: system-ui, sans-serif; font-size: 14px }
.ink { fill: var(--ink) } .axis { stroke: var(--line) }"""


def draw(fields: Mapping[str, Any]) -> str:
    """Return the picture."""
    pair, measure = PAIRS[fields["demo"]], fields["measures"][fields["accuracy"]]
    shared = resources.files("halimede.html_report").joinpath("style.css").read_text("utf-8")
    heading = f"{pair.small} at the edge asks {pair.big} in the cloud: {measure}, with 95 % intervals"
    values = ", ".join(f"{name} {fields[name][fields['accuracy']]['value']:.3f}" for name in report.ANSWERS)
    bytes_joint, bytes_cloud = size(fields["bytes_joint"]), size(fields["bytes_cloud"])
    lines = (
        f"{fields['upload_share']['value']:.1%} of {fields['frames']} frames went up",
        f"{bytes_joint} to the cloud in place of {bytes_cloud}, and {fields['lost'] or 'no'} frame lost",
    )
    parts = [
        f"<style>{shared[: shared.index('*')]}{STYLE}</style>",
        charts.rect(0, 0, WIDTH, HEIGHT, "var(--card)"),
        charts.text(20, 36, heading, css="ink", more='style="font-size:19px" font-weight="600"'),
        *(charts.text(20, BELOW + 26 * i, line, css="ink") for i, line in enumerate(lines)),
    ]
    for x, chart in zip((20, RIGHT), accuracy_charts(pair, fields), strict=True):
        inside = chart.replace("<svg ", '<svg preserveAspectRatio="xMinYMin" overflow="visible" ', 1)
        parts.append(f'<g transform="translate({x} {TOP})">{inside}</g>')
    picture = charts.svg(WIDTH, HEIGHT, parts, f"{heading}. {values}")
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def main() -> None:
    """Draw a report into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="report.json of a run")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    options = parser.parse_args()
    options.picture.write_text(draw(json.loads(options.report.read_text())) + "\n")


if __name__ == "__main__":
    main()
