"""Downloads, verifies and caches all models and files with a URL. Also unpacks and tries models, and uploads files.

``fetch`` turns a URL into a file of the node's cache, which names files by their SHA-256 digests. It refuses a content
of another digest than the given one, an empty or endless body, and a folder. It connects only to addresses that the
operator has allowed, and never shows a secret of a URL.
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
