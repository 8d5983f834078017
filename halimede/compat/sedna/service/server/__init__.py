"""The server of federated learning, which is not supported."""

from halimede.compat.sedna.unsupported import FEDERATED, absent

__all__ = ("AggregationServer",)

AggregationServer = absent("AggregationServer", FEDERATED)
