"""Sedna's server of federated learning: here an aggregator of a training job, on the bus."""

from __future__ import annotations

import asyncio
from typing import Any

from halimede.compat.sedna import environment
from halimede.compat.sedna.common.config import Context
from halimede.compat.sedna.federated_job import aggregate, parse_positive
from halimede.errors import first_error
from halimede.training.aggregation import create

__all__ = ("AggregationServer",)


class AggregationServer:
    """Aggregates the weights of ``participants_count`` scripts for ``exit_round`` rounds.

    ``aggregation`` is the name of an algorithm of halimede, such as FedAvg. Addresses, ports and sizes are accepted and
    not used: the bus has them. EXIT_ROUND and PARTICIPANTS_COUNT of the environment take precedence, as in Sedna.

    Raises InvalidFieldError for an unknown algorithm or a number below 1.
    """

    def __init__(  # noqa: PLR0917 (as in Sedna)
        self,
        aggregation: Any = "FedAvg",
        host: str | None = None,  # noqa: ARG002
        http_port: int | None = None,  # noqa: ARG002
        exit_round: int = 1,
        participants_count: int = 1,
        ws_size: int = 0,  # noqa: ARG002
    ) -> None:
        name = aggregation if isinstance(aggregation, str) else getattr(aggregation, "__name__", str(aggregation))
        create(name, {})
        self.aggregation = name
        self.exit_round = parse_positive("exit_round", Context.get_parameters("EXIT_ROUND", exit_round))
        count = Context.get_parameters("PARTICIPANTS_COUNT", participants_count)
        self.participants_count = parse_positive("participants_count", count)

    def start(self) -> None:
        """Aggregate until the last round is done. Raises HalimedeError, also outside of the main thread."""
        environment.check_main_thread("AggregationServer.start")
        with first_error():
            asyncio.run(aggregate(self.aggregation, self.exit_round, self.participants_count))
