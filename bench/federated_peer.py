"""The same job in Flower, in its own Python: ``server PORT ROUNDS OUT`` or ``client PORT SAMPLES``.

Flower's gRPC server and its clients, each a process, with the trainer that our trainers run. ``OUT`` gets the seconds
between rounds, and the final weights.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

from halimede.training.data import split
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron

CLASSES, FEATURES, NODES = 10, 64, 5
PARAMETERS = {"epochs": "1", "rate": "0.02"}


class Client(NumPyClient):
    """One node."""

    def __init__(self, samples: Path) -> None:
        with np.load(samples, allow_pickle=False) as file:
            self._data = split(file["x"], file["y"].astype(np.int64), CLASSES).train
        self._trainer = Perceptron(**PARAMETERS)
        self._names = list(self._trainer.initial_weights((FEATURES,), CLASSES))

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Train on the node's samples."""
        data = TrainingData(self._data.samples, self._data.labels, CLASSES, seed=int(config["seed"]))
        weights, metrics = self._trainer.train(data, dict(zip(self._names, parameters, strict=True)))
        return list(weights.values()), len(data), dict(metrics)


class Timed(FedAvg):
    """The mean, with the time at which each round begins, and its last weights."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begins: list[float] = []
        self.last: list[Any] = []

    def configure_fit(self, *args: Any, **options: Any) -> Any:
        """Begin a round."""
        self.begins.append(time.monotonic())
        return super().configure_fit(*args, **options)

    def aggregate_fit(self, *args: Any, **options: Any) -> Any:
        """End a round."""
        found = super().aggregate_fit(*args, **options)
        self.last = parameters_to_ndarrays(found[0])
        return found


def server(port: str, rounds: str, out: str) -> None:
    """Run all rounds."""
    first = Perceptron(**PARAMETERS).initial_weights((FEATURES,), CLASSES)
    strategy = Timed(
        fraction_evaluate=0.0, min_fit_clients=NODES, min_available_clients=NODES,
        initial_parameters=ndarrays_to_parameters(list(first.values())),
        on_fit_config_fn=lambda number: {"seed": number},
    )  # fmt: skip
    start_server(server_address=f"127.0.0.1:{port}", config=ServerConfig(num_rounds=int(rounds)), strategy=strategy)
    Path(out).with_suffix(".json").write_text(json.dumps(np.diff([*strategy.begins, time.monotonic()]).tolist()))
    np.savez(out, **dict(zip(first, strategy.last, strict=True)))


def client(port: str, samples: str) -> None:
    """Take part until the server ends."""
    start_client(server_address=f"127.0.0.1:{port}", client=Client(Path(samples)).to_client(), insecure=True)


if __name__ == "__main__":
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
