"""Files over MQTT for nodes that reach only the broker: by digest (SHA-256), in pieces, resumed and verified.

``BlobServer`` serves files of a cache, ``BlobClient`` and ``BlobDownload`` request them, ``BusOpener`` makes them a
source of the fetcher, and ``BlobAdmin`` carries out operators' orders (``halimede blob put``, ``list``, ``delete``).
"""

from halimede.blobs.client import BlobClient
from halimede.blobs.download import BusOpener, with_fallback
from halimede.blobs.server import BlobServer, FileProvider, of_cache

__all__ = ["BlobClient", "BlobServer", "BusOpener", "FileProvider", "of_cache", "with_fallback"]
