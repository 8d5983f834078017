"""Downloads, verifies and caches all models and files that halimede uses; no other code does.

``fetch`` turns a URL into a file of the node's content-addressed cache. It refuses what it cannot verify: a different
digest, an empty or endless body, a folder. It connects only to addresses that the operator has allowed, and never shows
a secret of a URL.
"""

from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import Cache, Fetched
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.fetcher import fetch, probe
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
    "probe",
    "redact",
]
