"""Metrics of an aggregator and of a trainer for Prometheus, from the progress that they report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from halimede.messages import TrainingProgress
from halimede.observe.metrics import counter, gauge
from halimede.training.tensor_exchange import TensorExchange


def training_metrics(
    progress: TrainingProgress, exchange: TensorExchange, round_s: float, updates: Mapping[str, int] | None = None
) -> Iterator[Metric]:
    """Yield the metrics of one worker.

    ``round_s``: seconds of its last round; ``updates``: of an aggregator, counts of updates by their result.
    """
    yield gauge("training_round_index", "Number of the present round.", progress.round)
    yield gauge("training_round_seconds", "Time of the last round; of a trainer: of its training.", round_s)
    directions = [({"direction": "sent"}, exchange.sent_bytes), ({"direction": "received"}, exchange.received_bytes)]
    yield counter("training_tensor_bytes", "Bytes of weights and updates, since the start of this process.", directions)
    values = [({"metric": key}, value) for key, value in sorted(progress.metrics.items())]
    yield gauge("training_metric", "Metrics of the latest weights that were evaluated.", values)
    if updates is not None:
        counts = [({"result": result}, number) for result, number in sorted(updates.items())]
        yield counter("training_updates", "Updates: received ones, and others by the reason.", counts)
