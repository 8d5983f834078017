"""Rounds of federated training in one process, with the library's parts alone: for tests, and to try settings.

    python -m examples.federated.simulation

prints what the five nodes of the demo learn, without a broker and in some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from examples.federated.split import CLASSES, together, training_parts, unseen
from halimede.messages import Compression
from halimede.training.aggregation import create
from halimede.training.error_feedback import ErrorFeedback
from halimede.training.tensor_file import decode
from halimede.training.trainer import TrainingData, load_trainer
from halimede.training.update_checks import Update, clipped
from halimede.training.weights import Weights, difference, specs_of

#: rounds, and the settings of trainer and aggregation, that the demo uses as well
ROUNDS = 60
TRAINER = {"epochs": "1", "rate": "0.02"}
AGGREGATION, AGGREGATION_PARAMETERS = "FedAdam", {"rate": "0.1"}
WHOLE, COMPRESSION = Compression(), Compression(dtype="float16", top_k=0.125)
#: nodes that drop out of each round, in the run that shows it
DROPPED = 2


@dataclass(frozen=True)
class JobParameters:
    """A job in one process. ``arriving`` returns an update as the aggregator receives it, None: it is refused."""

    rounds: int = ROUNDS
    trainer: dict[str, str] = field(default_factory=lambda: dict(TRAINER))
    aggregation: str = AGGREGATION
    parameters: dict[str, str] = field(default_factory=lambda: dict(AGGREGATION_PARAMETERS))
    compression: Compression = WHOLE
    dropped: int = 0
    clip: bool = True
    arriving: Callable[[Update], Update | None] = lambda update: update


@dataclass
class JobResult:
    """Accuracy on the unseen half after each round, and the bytes of all updates."""

    accuracy: list[float]
    update_bytes: int = 0


def simulate(nodes: Sequence[TrainingData], job: JobParameters) -> JobResult:
    """Train for all rounds; the same call has the same result."""
    trainer, aggregation, test = (
        load_trainer("Perceptron", job.trainer),
        create(job.aggregation, job.parameters),
        unseen(),
    )
    weights: Weights = trainer.initial_weights(nodes[0].samples.shape[1:], CLASSES)
    feedback = [ErrorFeedback(job.compression) for _ in nodes]
    chance, result = np.random.default_rng(0), JobResult([])
    for number in range(job.rounds):
        updates = []
        gone = set(chance.choice(len(nodes), job.dropped, replace=False).tolist())
        for index, part in enumerate(nodes):
            if index in gone:
                continue
            data = replace(part, seed=number * 1000 + index, parameters=aggregation.trainer_parameters())
            trained, metrics = trainer.train(data, weights)
            content, feedback[index].residual = feedback[index].compress(difference(trained, weights))
            result.update_bytes += len(content)
            delta = decode(content, specs_of(weights))
            if update := job.arriving(Update(f"trainer{index}", len(part), delta, dict(metrics))):
                updates.append(update)
        weights = aggregation.aggregate(weights, clipped(updates)[0] if job.clip else updates)
        result.accuracy.append(trainer.evaluate(test, weights)["accuracy"])
    return result


def alone(data: TrainingData, epochs: int = ROUNDS) -> float:
    """Return the accuracy of the same trainer on one set of samples, after as many epochs as the job has rounds."""
    trainer = load_trainer("Perceptron", {**TRAINER, "epochs": str(epochs)})
    weights, _ = trainer.train(data, trainer.initial_weights(data.samples.shape[1:], CLASSES))
    return trainer.evaluate(unseen(), weights)["accuracy"]


def main() -> None:
    """Print the accuracy of each way to train."""
    nodes = training_parts()
    print(f"all digits in one place: {alone(together(nodes)):.3f}")
    print(f"the best node alone:     {max(map(alone, nodes)):.3f}")
    for name, job in (
        ("federated", JobParameters()),
        (f"{DROPPED} of {len(nodes)} drop out", JobParameters(dropped=DROPPED)),
        ("compressed", JobParameters(compression=COMPRESSION)),
    ):
        found = simulate(nodes, job)
        print(
            f"{name + ':':24} {found.accuracy[-1]:.3f}, {found.update_bytes / job.rounds:,.0f} bytes of updates a round"
        )


if __name__ == "__main__":
    main()
