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
from halimede.cli.output import clean, console, table, warn, writable
from halimede.cli.progress import stages
from halimede.cli.runner import needs_worker, run

if TYPE_CHECKING:
    from halimede.evaluation.data import LabelledSamples
    from halimede.evaluation.evaluate import EvaluationReport, TierLink

#: names of the files that are written
PLOT_FILE, PAGE_FILE, JSON_FILE = "evaluation.png", "evaluation.html", "evaluation.json"

#: options, also of `halimede calibrate`
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
        needs_worker("halimede.evaluation.evaluate")
        from halimede.evaluation.evaluate import TierLink

        link_options = {name: value for name, value in (("ms", link_ms), ("kbps", link_kbps)) if value is not None}
        report, samples = _read_and_evaluate(service, data, [name.strip() for name in rules.split(",") if name.strip()],
                            TierLink(**link_options, assumed=not link_options))  # fmt: skip
        _write(report, samples, out)
        _show(report, out, as_json=as_json)

    run(command)


def _read_and_evaluate(
    service: list[Path], data: Path, rules: list[str], link: TierLink
) -> tuple[EvaluationReport, LabelledSamples]:
    """Read the service and its data, evaluate with a progress bar, and return the report and the samples.

    ``rules``: only these; empty: all. Raises HalimedeError.
    """
    from halimede.evaluation.data import read_labelled
    from halimede.evaluation.evaluate import evaluate as evaluate_chain
    from halimede.evaluation.service import check_crops, read_chain

    chain = read_chain(service)
    with stages() as report:
        samples = read_labelled(data, chain.cloud.spec.labels, partial(report, "read"))
        check_crops(chain, samples, "--data", str(data))
        return evaluate_chain(chain, samples, rules=rules, link=link, report=report), samples


def _write(report: EvaluationReport, samples: LabelledSamples, out: Path) -> None:
    """Write all files into ``out``; without a plotting library, the plot is left out with a warning.

    Raises InvalidFieldError.
    """
    from halimede.evaluation.pictures import disagreements_section
    from halimede.evaluation.report import page, write_plot

    with writable("--out", out):
        out.mkdir(parents=True, exist_ok=True)
        (out / JSON_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        (out / PAGE_FILE).write_text(page(report, disagreements_section(report, samples)), encoding="utf-8")
        try:
            write_plot(report, out / PLOT_FILE)
        except ImportError as error:
            (out / PLOT_FILE).unlink(missing_ok=True)  # left by an earlier run
            warn(f"no plot: {error.name} is not installed: pip install 'halimede[demo]'")


def _show(report: EvaluationReport, out: Path, *, as_json: bool) -> None:
    """Print the report as tables, or as JSON."""
    from halimede.evaluation.report import describe_data, operating_rows, ratio_rows, tier_rows

    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
        return
    terminal = console()
    terminal.print(clean(f"{report.service}: {describe_data(report)}"), markup=False)
    for heading, rows in (
        tier_rows(report),
        ratio_rows(report),
        (["AS CONFIGURED", ""], operating_rows(report)),
    ):
        terminal.print()
        terminal.print(table(heading, rows))
    for note in report.notes:
        warn(f"Note: {note}")
    paths = [str(out / name) for name in (PAGE_FILE, PLOT_FILE, JSON_FILE) if (out / name).exists()]
    terminal.print(f"\nwritten: {', '.join(paths)}", markup=False)
