"""The figures of the demo, from what its three jobs published, and the targets that they have to meet. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.federated.live import LiveJob

#: most that federated training may lose against all samples in one place, the same with drop-outs, and by compression
LOSS, LOSS_DROPPED, LOSS_COMPRESSED = 0.02, 0.04, 0.01
#: least that it wins over the best node alone, and times fewer bytes of all messages by compression
GAIN, FEWER_BYTES = 0.15, 4.0


@dataclass(frozen=True)
class FinishedJob:
    """A job that ran, and the accuracy of its model on the digits that nobody trained on."""

    job: LiveJob
    accuracy: float

    @property
    def rounds(self) -> int:
        """Rounds of training."""
        return int(self.job.spec["rounds"])

    @property
    def dropped(self) -> int:
        """Updates of invited trainers that did not count."""
        pairs = itertools.pairwise(self.job.rounds)
        # a repeated round has the same number, and nobody's update counts in it
        return sum(len(one.invited) - len(after.counted) * (after.number > one.number) for one, after in pairs)

    @property
    def course(self) -> list[tuple[int, float]]:
        """Round and accuracy on the samples that the trainers hold out, as the aggregator published it."""
        found = {body.evaluated: body.metrics["accuracy"] for body in self.job.rounds if body.metrics}
        return sorted(found.items())


def figures(
    whole: FinishedJob, dropouts: FinishedJob, compressed: FinishedJob, centralised: float, alone: Sequence[float]
) -> dict[str, Any]:
    """Return report.json."""
    traffic, smaller = whole.job.traffic, compressed.job.traffic
    return {
        "centralised_accuracy": round(centralised, 4),
        "federated_accuracy": round(whole.accuracy, 4),
        "best_single_accuracy": round(max(alone), 4),
        "rounds": whole.rounds,
        "bytes_per_round": round(traffic.all / whole.rounds),
        "dropped_updates": dropouts.dropped,
        "dropout_accuracy": round(dropouts.accuracy, 4),
        "compressed_accuracy": round(compressed.accuracy, 4),
        "single_accuracies": [round(each, 4) for each in alone],
        "update_bytes_per_round": round(traffic.updates / whole.rounds),
        "weights_bytes_per_round": round(traffic.weights / whole.rounds),
        "compressed_bytes_per_round": round(smaller.all / compressed.rounds),
        "compressed_update_bytes_per_round": round(smaller.updates / compressed.rounds),
        "compressed_weights_bytes_per_round": round(smaller.weights / compressed.rounds),
        "seconds_per_round": round(whole.job.seconds_per_round, 3),
        "dropout_seconds_per_round": round(dropouts.job.seconds_per_round, 3),
    }


def times_fewer(found: Mapping[str, Any]) -> float:
    """Return how many times fewer bytes a round has with compression, of all messages."""
    return float(found["bytes_per_round"] / max(found["compressed_bytes_per_round"], 1))


def missed(found: Mapping[str, Any]) -> list[str]:
    """Return the targets that a run missed, in one line each."""
    central, federated = found["centralised_accuracy"], found["federated_accuracy"]
    fewer = times_fewer(found)
    checks = {
        f"federated {federated} is more than {LOSS} below {central}": federated >= central - LOSS,
        f"federated {federated} is not {GAIN} above a node alone": federated >= found["best_single_accuracy"] + GAIN,
        f"with drop-outs {found['dropout_accuracy']} is more than {LOSS_DROPPED} below {central}": found[
            "dropout_accuracy"
        ]
        >= central - LOSS_DROPPED,
        "no update was dropped in the job with drop-outs": found["dropped_updates"] > 0,
        f"compressed {found['compressed_accuracy']} is more than {LOSS_COMPRESSED} below {federated}": found[
            "compressed_accuracy"
        ]
        >= federated - LOSS_COMPRESSED,
        f"a round has only {fewer:.1f} times fewer bytes with compression": fewer >= FEWER_BYTES,
    }
    return [text for text, met in checks.items() if not met]


def table(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each figure, for people."""
    return [
        ("accuracy, all digits in one place", f"{found['centralised_accuracy']:.4f}"),
        ("accuracy, federated", f"{found['federated_accuracy']:.4f}"),
        ("accuracy, the best node alone", f"{found['best_single_accuracy']:.4f}"),
        ("accuracy, two of five nodes drop out of each round", f"{found['dropout_accuracy']:.4f}"),
        ("updates that did not count there", f"{found['dropped_updates']}"),
        ("accuracy, updates and weights compressed", f"{found['compressed_accuracy']:.4f}"),
        ("rounds", f"{found['rounds']}"),
        ("seconds a round (median)", f"{found['seconds_per_round']:.2f}"),
        ("bytes a round, all messages", f"{found['bytes_per_round']:,}"),
        ("of these, weights to five trainers", f"{found['weights_bytes_per_round']:,}"),
        ("of these, updates", f"{found['update_bytes_per_round']:,}"),
        ("bytes a round with compression, all messages", f"{found['compressed_bytes_per_round']:,}"),
        ("of these, weights and their changes", f"{found['compressed_weights_bytes_per_round']:,}"),
        ("of these, updates", f"{found['compressed_update_bytes_per_round']:,}"),
        ("times fewer bytes with compression", f"{times_fewer(found):.1f}"),
    ]
