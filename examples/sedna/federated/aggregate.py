"""An aggregation script as one writes it for Sedna."""

from sedna.common.config import Context
from sedna.service.server import AggregationServer


def main():  # noqa: ANN201  # as such scripts are
    """Aggregate the weights of all participants, round by round."""
    server = AggregationServer(
        aggregation=Context.get_parameters("aggregation_algorithm", "FedAvg"),
        exit_round=int(Context.get_parameters("exit_round", 3)),
        participants_count=int(Context.get_parameters("participants_count", 1)),
    )
    server.start()


if __name__ == "__main__":
    main()
