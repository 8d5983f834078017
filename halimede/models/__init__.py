"""The one fetcher: whatever halimede runs has been downloaded, verified and cached here, and nowhere else.

``fetch`` turns a URL into a file of the node's content-addressed cache. It refuses what it cannot verify: a digest that
differs, an empty or endless body, a folder; and it connects to no address that the operator has not allowed. It never
shows a secret of a URL.
"""

from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import Cache, Fetched
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.fetcher import fetch
from halimede.models.source_registry import local_path
from halimede.models.source_types import SourceOpener, Stream, TransferLimits, TransferRate

__all__ = [
    "AddressPolicy",
    "Cache",
    "FetchError",
    "FetchReason",
    "Fetched",
    "SourceOpener",
    "Stream",
    "TransferLimits",
    "TransferRate",
    "fetch",
    "local_path",
    "redact",
]
