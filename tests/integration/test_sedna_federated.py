"""Federated scripts written for Sedna train over a real broker, untouched and with their imports changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from services.broker import MosquittoProcess
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "sedna" / "federated"
UNTOUCHED = (sys.executable, "-m", "halimede.compat.sedna")
PATIENCE_S = 120.0


def write_csv(path: Path, rows: np.ndarray, labels: np.ndarray) -> str:
    header = ",".join([*(f"p{i}" for i in range(64)), "label"])
    np.savetxt(path, np.column_stack([rows, labels]), "%g", ",", header=header, comments="")
    return str(path)


@contextmanager
def scripts(
    folder: Path, broker: str, job: str, commands: dict[str, Sequence[str]]
) -> Iterator[dict[str, subprocess.Popen]]:
    """Run an aggregator and two participants; each has the digits of five classes, and is measured on all."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    rows, labels = found.data[order], found.target[order]
    test = write_csv(folder / "test.csv", rows[1200:], labels[1200:])
    running = {}
    try:
        for name, command in commands.items():
            told = {
                **os.environ, "HALIMEDE_BROKER": broker, "SERVICE_NAME": job, "WORKER_NAME": f"{job}-{name}",
                "NODE_NAME": name, "HALIMEDE_STATE": str(folder / "state" / name), "PYTHONPATH": str(ROOT),
                "EXIT_ROUND": "4", "PARTICIPANTS_COUNT": "2", "OUTPUT": str(folder / f"{name}.npz"),
                "TEST_DATASET_URL": test, "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            if name != "cloud":
                mine = (labels[:1200] < 5) == (name == "edge0")
                told["TRAIN_DATASET_URL"] = write_csv(folder / f"{name}.csv", rows[:1200][mine], labels[:1200][mine])
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(command, env=told, cwd=folder, stdout=log, stderr=log)
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def check(folder: Path, running: dict[str, subprocess.Popen]) -> None:
    """All scripts end by themselves; both participants have the same weights, and know the other's digits."""
    for name, process in running.items():
        try:
            code = process.wait(patience(PATIENCE_S))
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in folder.glob("*.log")) + name
    first, second = (np.load(folder / f"{name}.npz") for name in ("edge0", "edge1"))
    assert all((first[key] == second[key]).all() for key in first.files)
    said = (folder / "edge0.log").read_text().strip().splitlines()[-1]
    assert float(said.partition("'accuracy': ")[2].rstrip("}")) > 0.75, said


async def test_untouched_scripts_train_one_model(mosquitto: MosquittoProcess, unique: str, tmp_path: Path) -> None:
    train, aggregate = ([*UNTOUCHED, str(SCRIPTS / name)] for name in ("train.py", "aggregate.py"))
    with scripts(tmp_path, mosquitto.url, unique, {"cloud": aggregate, "edge0": train, "edge1": train}) as running:
        check(tmp_path, running)


async def test_scripts_with_their_imports_changed_do_the_same(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    for name in ("train.py", "aggregate.py"):
        text = (SCRIPTS / name).read_text().replace("from sedna.", "from halimede.compat.sedna.")
        (tmp_path / name).write_text(text)
    train, aggregate = ([sys.executable, str(tmp_path / name)] for name in ("train.py", "aggregate.py"))
    with scripts(tmp_path, mosquitto.url, unique, {"edge0": train, "edge1": train, "cloud": aggregate}) as running:
        check(tmp_path, running)
