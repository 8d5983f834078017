"""``halimede calibrate``: fits which samples of a service go to the cloud, and how to mix the answers of two tiers.

It writes the calibration to a file, and manifests of the service that use the file.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from halimede.cli.commands.evaluate import DataOption, ServiceFiles
from halimede.cli.options import check_finite, read_costs
from halimede.cli.output import clean, console, to_yaml, warn, writable
from halimede.cli.progress import stages
from halimede.cli.runner import FAILED, needs_worker, run
from halimede.errors import HalimedeError

if TYPE_CHECKING:
    from halimede.calibration.calibrate import CalibrationResult, Goal
    from halimede.calibration.service import Deadline
    from halimede.evaluation.service import Chain

    #: a service, the index of the calibrated tier in it, and the result
    CalibratedTier = tuple[Chain, int, CalibrationResult]

#: the warning that no file is written
NOT_ABOVE_CHANCE = (
    "Not written: the joint answers are not above chance, by the 95 % interval. Give more samples, another --rule or"
    " another goal; --accept writes the files all the same"
)
#: defaults of a link that was not measured: milliseconds of a round trip without data, and kilobits per second
LINK_MS, LINK_KBPS = 20.0, 10_000.0


def calibrate(
    service: ServiceFiles,
    data: DataOption,
    target_upload: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="SHARE", help="Share of samples to upload, such as 0.2.")
    ] = None,
    max_risk: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="SHARE", help="Share of edge answers that the cloud could correct."),
    ] = None,
    costs: Annotated[
        str,
        typer.Option(metavar="PRICES", help="Costs, such as miss=10,falseAlarm=1,upload=0.2,positive=CLASS."),
    ] = "",
    deadline_ms: Annotated[
        float | None, typer.Option(min=0, metavar="MS", help="As many as the cloud can answer in this time.")
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=0.9999,
            metavar="SHARE",
            help="Probability with which --max-risk holds, or the bound on the costs.",
        ),
    ] = 0.99,
    rule: Annotated[str, typer.Option("--rule", metavar="NAME", help="The algorithm. Default: the best of all.")] = "",
    tier: Annotated[
        str, typer.Option("--tier", metavar="NAME", help="The tier to calibrate, in a service with tiers.")
    ] = "edge",
    link_ms: Annotated[
        float, typer.Option("--link-ms", min=0, metavar="MS", help="Round trip to the next tier, for --deadline-ms.")
    ] = LINK_MS,
    link_kbps: Annotated[
        float, typer.Option("--link-kbps", min=0.001, metavar="KBPS", help="The link's kbit/s, for --deadline-ms.")
    ] = LINK_KBPS,
    per_second: Annotated[
        float, typer.Option(min=0, metavar="RATE", help="Samples a second, for --deadline-ms. 0: no load.")
    ] = 0.0,
    accept: Annotated[
        bool, typer.Option("--accept", help="Write the files, although the rule is not above chance.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder for both files.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON in place of a table.")] = False,
) -> None:
    """Calibrate which samples go to the cloud, for an upload share, a risk, costs, or a deadline.

    Give at least 72 samples that the models were not trained on. Without labels the answers of the big model count as
    true. Writes SERVICE.calibration and SERVICE.calibration.yaml, which has the service and all its Models:
    `halimede apply -f` applies it. The figures are measured on 30 % of the samples, which the calibration does not
    use, with the uploads that a worker's budget makes. If the joint answers are not above those of as many random
    uploads, by the 95 % interval, nothing is written and the exit code is 1.

    \b
    Examples:
      halimede calibrate --service digits/2-service.yaml --data labelled/ --target-upload 0.2
      halimede calibrate --service service.yaml --service models.yaml --data labelled.npz --max-risk 0.02
      halimede calibrate --service service.yaml --data labelled/ --costs miss=10,falseAlarm=1,upload=0.2,positive=yes
      halimede calibrate --service service.yaml --data labelled/ --deadline-ms 100 --link-kbps 2000
    """
    goals = {"--target-upload": target_upload, "--max-risk": max_risk, "--deadline-ms": deadline_ms}
    check_finite(goals)
    check_finite({"--confidence": confidence, "--link-ms": link_ms, "--link-kbps": link_kbps})
    check_finite({"--per-second": per_second})
    if sum(value is not None for value in goals.values()) + bool(costs) != 1:
        raise typer.BadParameter(f"give exactly one of {', '.join(goals)}, --costs")

    async def command() -> int:
        needs_worker("halimede.calibration.service")
        from halimede.calibration.calibrate import Goal
        from halimede.calibration.service import Deadline
        from halimede.calibration.thresholds import UploadPath

        prices = read_costs("--costs", costs) if costs else None
        goal: Goal | Deadline = Goal(
            target_upload=target_upload, max_risk=max_risk, costs=prices, confidence=confidence
        )
        if deadline_ms is not None:
            path = UploadPath(link_ms=link_ms, link_kbps=link_kbps, per_second=per_second)
            goal = Deadline(ms=deadline_ms, path=path)
        chain, index, result = _read_and_calibrate(service, data, goal, rule, tier)
        files = _write(chain, index, result, out) if accept or result.is_above_chance else None
        _show(chain, index, result, files, as_json=as_json)
        if files is None:
            warn(NOT_ABOVE_CHANCE)
        return 0 if files else FAILED

    run(command)


def _read_and_calibrate(service: list[Path], data: Path, goal: Goal | Deadline, rule: str, tier: str) -> CalibratedTier:
    """Read the service and its data, and calibrate the tier ``tier`` with a progress bar. Raises HalimedeError.

    ``goal``: what the calibration must achieve. ``rule``: the algorithm; empty: the best of all.
    """
    from halimede.calibration.calibrate import describe_shortage
    from halimede.calibration.service import calibrate_tier, tier_index
    from halimede.evaluation.data import read_labelled
    from halimede.evaluation.service import check_crops, read_chain

    chain = read_chain(service)
    index = tier_index(chain, tier)
    with stages() as report:
        samples = read_labelled(data, chain.cloud.spec.labels, partial(report, "read"))
        check_crops(chain, samples, "--data", str(data))
        if shortage := describe_shortage(len(samples)):  # before a model is opened
            raise HalimedeError(f"--data {data}: {shortage}")
        return chain, index, calibrate_tier(chain, index, samples, goal=goal, rule=rule, report=report)


@dataclass(frozen=True, slots=True)
class WrittenCalibration:
    """The files that were written."""

    #: the calibration
    artefact: Path
    #: the manifests of the calibration (a Model), of the service, which uses it, and of the service's Models
    fragment: Path
    #: lines about what the new manifest changes in the service
    changes: list[str]

    @property
    def next(self) -> str:
        """The command that applies the manifests."""
        return f"halimede apply -f {shlex.quote(str(self.fragment))}"


def _write(chain: Chain, index: int, result: CalibrationResult, out: Path) -> WrittenCalibration:
    """Write both files into ``out``, each atomically. Raises InvalidFieldError."""
    from halimede.calibration.service import changes, manifests, name_of
    from halimede.mining.calibration_file import write_artefact
    from halimede.system.files import write_atomic

    name, contents = name_of(chain, index), write_artefact(result.artefact)
    artefact, fragment = out / f"{name}.calibration", out / f"{name}.calibration.yaml"
    url = str(artefact.resolve())
    documents = manifests(chain, index, result, url, hashlib.sha256(contents).hexdigest())
    with writable("--out", out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(artefact, contents)
        write_atomic(fragment, "---\n".join(map(to_yaml, documents)).encode())
    return WrittenCalibration(artefact, fragment, changes(chain.service.body, documents[-1], index))


def _show(
    chain: Chain, index: int, result: CalibrationResult, files: WrittenCalibration | None, *, as_json: bool
) -> None:
    """Print the result as text or JSON; ``files`` None: none were written."""
    from halimede.calibration.service import describe_calibration, metric_rows

    if as_json:
        report = {
            "rule": result.artefact.rule,
            "parameters": result.artefact.parameters,
            "fitted": result.fitted,
            "heldOut": result.held_out,
            "blockLength": result.block_length,
            "metric": result.metric,
            "aboveChance": result.is_above_chance,
            "figures": result.artefact.metrics,
            "files": [str(files.artefact), str(files.fragment)] if files else [],
            "changes": files.changes if files else [],
            "next": files.next if files else "",
        }
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return
    terminal = console()
    low, high = (tier.model for tier in chain.tiers[index : index + 2])
    for line in describe_calibration(result, low, high):
        terminal.print(clean(line), markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("HELD OUT", "VALUE", "95 % INTERVAL"):
        table.add_column(heading, justify="left" if heading == "HELD OUT" else "right")
    for row in metric_rows(result):
        table.add_row(*row)
    terminal.print()
    terminal.print(table)
    terminal.print()
    for note in result.notes:
        warn(f"Note: {note}")
    if files is None:
        return
    terminal.print("Changed in the service:")
    for line in files.changes:
        terminal.print(clean(f"  {line}"), markup=False)
    terminal.print(clean(f"Written: {files.artefact}, {files.fragment} (the service and all its Models)"), markup=False)
    terminal.print(clean(f"Next: {files.next}"), markup=False)
