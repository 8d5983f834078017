"""Files over MQTT for nodes that reach only the broker: by digest, in pieces, resumed and verified.

``BlobServer`` gives what a cache holds, ``BlobClient`` and ``BlobDownload`` request it, ``BusOpener`` makes that a way
for the fetcher, and ``BlobAdmin`` does what operators ask of a source (``halimede blob put``, ``list``, ``delete``).
"""

from halimede.blobs.client import BlobClient
from halimede.blobs.download import BusOpener, with_fallback
from halimede.blobs.server import BlobServer, FileProvider, of_cache

__all__ = ["BlobClient", "BlobServer", "BusOpener", "FileProvider", "of_cache", "with_fallback"]
