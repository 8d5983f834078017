"""Rounds of federated training in one process, with the library's parts alone: for tests, and to try settings.

    python -m examples.federated.simulation [--seeds 3]

prints what the five nodes of the demo learn, and the bytes of their tensors, without a broker and in some seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from examples.federated.split import CLASSES, together, training_parts, unseen
from halimede.messages import Compression
from halimede.training.aggregation import create
from halimede.training.error_feedback import ErrorFeedback
from halimede.training.tensor_file import decode, encode
from halimede.training.trainer import TrainingData, load_trainer
from halimede.training.update_checks import Update, clip
from halimede.training.weights import Weights, difference, specs_of

#: rounds, and the settings of trainer and aggregation, that the demo uses as well
ROUNDS = 60
TRAINER = {"epochs": "1", "rate": "0.02"}
AGGREGATION, AGGREGATION_PARAMETERS = "FedAdam", {"rate": "0.1"}
WHOLE, COMPRESSION = Compression(), Compression(dtype="float16", top_k=0.25)
#: nodes that drop out of each round, in the run that shows it
DROPPED = 2


@dataclass(frozen=True)
class JobParameters:
    """A job in one process."""

    rounds: int = ROUNDS
    trainer: dict[str, str] = field(default_factory=lambda: dict(TRAINER))
    aggregation: str = AGGREGATION
    parameters: dict[str, str] = field(default_factory=lambda: dict(AGGREGATION_PARAMETERS))
    compression: Compression = WHOLE
    dropped: int = 0
    seed: int = 0


@dataclass
class JobResult:
    """Accuracy on the unseen half after each round, and the bytes of all updates, and of weights for the trainers."""

    accuracy: list[float]
    update_bytes: int = 0
    weights_bytes: int = 0


def simulate(nodes: Sequence[TrainingData], job: JobParameters) -> JobResult:
    """Train for all rounds; the same call has the same result."""
    trainer, aggregation, test = (
        load_trainer("Perceptron", job.trainer),
        create(job.aggregation, job.parameters),
        unseen(),
    )
    weights: Weights = trainer.initial_weights(nodes[0].samples.shape[1:], CLASSES)
    feedback = [ErrorFeedback(job.compression) for _ in nodes]
    changes = ErrorFeedback(job.compression)
    #: the change that made the weights, and the nodes that have those before it
    change, held = b"", set[int]()
    chance, result = np.random.default_rng(job.seed), JobResult([])
    for number in range(job.rounds):
        updates = []
        there = set(range(len(nodes))).difference(chance.choice(len(nodes), job.dropped, replace=False).tolist())
        for index in sorted(there):
            part, seed = nodes[index], job.seed * 1_000_003 + number * 1000 + index
            result.weights_bytes += len(change if index in held else encode(weights))
            data = replace(part, seed=seed, parameters=aggregation.trainer_parameters())
            trained, _ = trainer.train(data, weights)
            content, feedback[index].residual = feedback[index].compress(difference(trained, weights))
            result.update_bytes += len(content)
            updates.append(Update(f"trainer{index}", len(part), decode(content, specs_of(weights))))
        aggregated = aggregation.aggregate(weights, clip(updates)[0])
        if job.compression.is_lossy:
            weights, change = changes.advance(weights, aggregated)
            held = there
        else:
            weights = aggregated
        result.accuracy.append(trainer.evaluate(test, weights)["accuracy"])
    return result


def alone(data: TrainingData, epochs: int = ROUNDS) -> float:
    """Return the accuracy of the same trainer on one set of samples, after as many epochs as the job has rounds."""
    trainer = load_trainer("Perceptron", {**TRAINER, "epochs": str(epochs)})
    weights, _ = trainer.train(data, trainer.initial_weights(data.samples.shape[1:], CLASSES))
    return trainer.evaluate(unseen(), weights)["accuracy"]


def main() -> None:
    """Print accuracy and bytes of each way to train: the means over some seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each job")
    parser.add_argument("--top-k", type=float, default=COMPRESSION.top_k, help="share of values that compression sends")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be 1 at least")
    if not 0 < options.top_k <= 1:
        parser.error("--top-k must be above 0 and at most 1")
    compression = Compression(dtype=COMPRESSION.dtype, top_k=options.top_k)
    nodes = training_parts()
    print(f"all digits in one place: {alone(together(nodes)):.3f}")
    print(f"the best node alone:     {max(map(alone, nodes)):.3f}")
    for dropped in (0, DROPPED):
        whole: list[float] = []
        for name, job in (
            ("federated", JobParameters(dropped=dropped)),
            ("compressed", JobParameters(dropped=dropped, compression=compression)),
        ):
            found = [simulate(nodes, replace(job, seed=seed)) for seed in range(options.seeds)]
            accuracies = [each.accuracy[-1] for each in found]
            whole = whole or accuracies
            loss = max(before - after for before, after in zip(whole, accuracies, strict=True))
            updates = sum(each.update_bytes for each in found) / options.seeds / job.rounds
            weights = sum(each.weights_bytes for each in found) / options.seeds / job.rounds
            print(
                f"{name}{f', {dropped} drop out' if dropped else ''}: accuracy {np.mean(accuracies):.4f}, at most "
                f"{loss:.4f} lost by compression; {updates:,.0f} bytes of updates and {weights:,.0f} of weights a round"
            )


if __name__ == "__main__":
    main()
