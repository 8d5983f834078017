"""``halimede evaluate``: measures a service's models and rules on data; writes a table, a plot, a page and JSON."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from halimede.cli.options import check_finite
from halimede.cli.output import clean, console, table, warn
from halimede.cli.progress import stages
from halimede.cli.runner import run
from halimede.errors import InvalidFieldError

if TYPE_CHECKING:
    from halimede.evaluation.data import LabelledPicture
    from halimede.evaluation.evaluate import EvaluationReport, TierLink

PLOT, PAGE, FIGURES = "evaluation.png", "evaluation.html", "evaluation.json"

#: shared with `halimede calibrate`
ServiceFiles = Annotated[
    list[Path],
    typer.Option("--service", metavar="FILE", help="Manifests of the service and its Models; may be repeated."),
]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data", metavar="PATH", help="Class folders, pictures with annotations, a .csv or an .npz (see above)."
    ),
]


def evaluate(
    service: ServiceFiles,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for plot, page and figures.")] = Path(
        "build/evaluation"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON in place of tables.")] = False,
    rules: Annotated[
        str, typer.Option("--rules", metavar="NAMES", help="Only these rules, separated by commas.", show_default="all")
    ] = "",
    link_ms: Annotated[
        float | None, typer.Option("--link-ms", min=0, metavar="MS", help="Round trip to the next tier. Default: 20.")
    ] = None,
    link_kbps: Annotated[
        float | None, typer.Option("--link-kbps", min=0.001, metavar="KBPS", help="The link's kbit/s. Default: 10000.")
    ] = None,
) -> None:
    """Evaluate a service on new data: each tier alone, and all together at each upload ratio.

    Each rule's curve stands beside those of random uploads and of an oracle, which knows whose answer is right. No
    system needs to run: the command loads the models. Data is a folder of class folders with JPEG and PNG pictures,
    a folder with pictures and annotations of COCO or Pascal VOC, a .csv or .tsv (the class in a column `label`) or an
    .npz (x, y). Without labels the cloud's answers count as true.

    \b
    Examples:
      halimede evaluate --service digits/2-service.yaml --data digits-test.npz
      halimede evaluate --service service.yaml --service models.yaml --data test/ --rules Margin,Learned
      halimede evaluate --service service.yaml --data test/ --link-ms 40 --link-kbps 2000 --json | jq .cloud_only
    """
    check_finite({"--link-ms": link_ms, "--link-kbps": link_kbps})

    async def command() -> None:
        try:
            from halimede.evaluation.evaluate import TierLink
        except ModuleNotFoundError as error:
            raise typer.BadParameter(f"{error.name} is not installed: pip install 'halimede[worker]'") from error
        given = {name: value for name, value in (("ms", link_ms), ("kbps", link_kbps)) if value is not None}
        report, samples = _evaluated(service, data, [name.strip() for name in rules.split(",") if name.strip()],
                            TierLink(**given, assumed=not given))  # fmt: skip
        _write(report, samples, out)
        _show(report, out, as_json=as_json)

    run(command)


def _evaluated(
    service: list[Path], data: Path, rules: list[str], link: TierLink
) -> tuple[EvaluationReport, LabelledPicture]:
    """Read the data and evaluate, with progress."""
    from halimede.evaluation.data import read_labelled
    from halimede.evaluation.evaluate import evaluate as evaluated
    from halimede.evaluation.service import check_crops, read_chain

    chain = read_chain(service)
    with stages() as report:
        samples = read_labelled(data, chain.cloud.spec.labels, partial(report, "read"))
        check_crops(chain, samples, "--data", str(data))
        return evaluated(chain, samples, rules=rules, link=link, report=report), samples


def _write(report: EvaluationReport, samples: LabelledPicture, out: Path) -> None:
    """Write all files. Without a plotting library, the plot is left out with a message."""
    from halimede.evaluation.pictures import disagreements_section
    from halimede.evaluation.report import page, write_plot

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / FIGURES).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        (out / PAGE).write_text(page(report, disagreements_section(report, samples)), encoding="utf-8")
        try:
            write_plot(report, out / PLOT)
        except ImportError as error:
            (out / PLOT).unlink(missing_ok=True)  # left by an earlier run
            warn(f"no plot: {error.name} is not installed: pip install 'halimede[demo]'")
    except OSError as error:
        raise InvalidFieldError("--out", str(out), f"cannot be written: {error.strerror}") from error


def _show(report: EvaluationReport, out: Path, *, as_json: bool) -> None:
    from halimede.evaluation.report import about, operating_rows, ratio_rows, tier_rows

    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
        return
    shown = console()
    shown.print(clean(f"{report.service}: {about(report)}"), markup=False)
    for heading, rows in (
        tier_rows(report),
        ratio_rows(report),
        (["AS CONFIGURED", ""], operating_rows(report)),
    ):
        shown.print()
        shown.print(table(heading, rows))
    for note in report.notes:
        warn(f"Note: {note}")
    written = [str(out / name) for name in (PAGE, PLOT, FIGURES) if (out / name).exists()]
    shown.print(f"\nwritten: {', '.join(written)}", markup=False)
