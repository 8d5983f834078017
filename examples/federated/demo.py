"""Five nodes train one model without sharing a sample, from nothing to a report: what `make demo-federated` runs.

    python -m examples.federated.demo [--rounds 60] [--out build/demo-federated]

Writes the digits of each node, starts Mosquitto, and runs three jobs one after the other, each with an aggregator and
five trainers as processes: as it is, with two of five nodes that drop out of each round, and with compression of
updates and weights.
Compares them with all digits in one place and with each node alone, and writes report.json and report.html. Every
figure is measured in that run.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

from examples.demo_command import end, errors_in_a_line, write_report
from examples.federated import page, report, simulation, split
from examples.federated.live import DropOuts, LiveJob, running
from examples.federated.report import FinishedJob
from halimede import log
from halimede.inference import open_model
from halimede.messages import TrainingRound
from services.broker import MosquittoProcess

#: seconds of a round in the job with drop-outs: it ends when they are over
DEADLINE_S = 4.0


def specs(rounds: int) -> dict[str, dict[str, Any]]:
    """Return what the workers of each job are told."""
    whole = {
        "rounds": rounds,
        "parameters": simulation.TRAINER,
        "aggregation": simulation.AGGREGATION,
        "aggregationParameters": simulation.AGGREGATION_PARAMETERS,
        "minClients": len(split.NODES) - simulation.DROPPED,
    }
    return {
        "whole": whole,
        "dropouts": {**whole, "roundDeadlineS": DEADLINE_S},
        "compressed": {**whole, "compression": msgspec.to_builtins(simulation.COMPRESSION)},
    }


def accuracy(model: Path) -> float:
    """Return the accuracy of an ONNX file, opened as a worker does, on the digits that no node has."""
    test = split.unseen()
    with open_model(model, split.MODEL) as opened:
        labels = [answer.label for answer in opened.predict([opened.prepare(sample) for sample in test.samples])]
    return float(np.mean([label == str(truth) for label, truth in zip(labels, test.labels, strict=True)]))


class Demo:
    """One run of the three jobs."""

    def __init__(self, out: Path, console: Console) -> None:
        self._out = out
        self._console = console

    async def run(self, rounds: int) -> dict[str, Any]:
        """Run all jobs and write the report; return its figures."""
        files = split.write(self._out / "data")
        parts = split.training_parts()
        centralised = simulation.alone(split.together(parts), rounds)
        alone = [simulation.alone(part, rounds) for part in parts]
        self._console.print(f"all digits in one place: {centralised:.4f}; the best node alone: {max(alone):.4f}")
        (self._out / "broker").mkdir(parents=True, exist_ok=True)
        finished = {}
        async with MosquittoProcess(self._out / "broker") as broker:
            for name, spec in specs(rounds).items():
                job = LiveJob(name, self._out / "jobs" / name, broker.url, spec, files)
                finished[name] = await self._job(job)
        found = report.figures(finished["whole"], finished["dropouts"], finished["compressed"], centralised, alone)
        self._write(found, finished)
        return found

    async def _job(self, job: LiveJob) -> FinishedJob:
        dropouts = DropOuts(job, simulation.DROPPED) if job.name == "dropouts" else None

        def opened(body: TrainingRound) -> None:
            if dropouts:
                dropouts.opened(body)
            if body.number % 10 == 0:
                self._console.print(f"  round {body.number}: accuracy {body.metrics.get('accuracy', 0):.3f}")

        self._console.print(f"[bold]{job.name}[/]: an aggregator and {len(job.files)} trainers")
        async with running(job) as bus:
            content = await job.run(bus, opened)
        model = job.folder / "model.onnx"
        model.write_bytes(content)
        found = FinishedJob(job, accuracy(model))
        self._console.print(f"  {model}: accuracy {found.accuracy:.4f} on the digits that no node has")
        return found

    def _write(self, found: dict[str, Any], finished: dict[str, FinishedJob]) -> None:
        titles = {"whole": "All five nodes", "dropouts": "Two of five drop out", "compressed": "Compressed"}
        jobs = {titles[name]: job for name, job in finished.items()}
        write_report(
            self._out,
            found,
            page.page(found, jobs),
            report.table(found),
            title="federated training",
            console=self._console,
        )


def main() -> None:
    """Run the demo; exit 1 with one line if it fails, or if what it shows is not what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=simulation.ROUNDS, help="rounds of each job")
    parser.add_argument("--out", type=Path, default=Path("build/demo-federated"), help="folder of the report")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 at least")
    log.configure("ERROR")
    shutil.rmtree(options.out / "jobs", ignore_errors=True)  # a job of an earlier run would continue
    with errors_in_a_line():
        found = asyncio.run(Demo(options.out, Console()).run(options.rounds))
    end(report.missed(found))


if __name__ == "__main__":
    main()
