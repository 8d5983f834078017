"""The node's part in files over the bus: it gives what its model cache holds, and asks others for what it lacks."""

from __future__ import annotations

from halimede.blobs.admin import BlobNode, ManagedCache
from halimede.blobs.uris import party
from halimede.bus.port import Bus
from halimede.models import Cache
from halimede.names import check_name


def client_id(node: str) -> str:
    """Return the id of the connection for files: one beside the controller's own."""
    return f"lc.{node}-blobs"


class NodeBlobs(BlobNode):
    """``run`` it in addition to the controller; ``opener`` is for ``fetch(..., openers={"bus": opener})``.

    ``bus`` is a connection of its own (``client_id``) that nobody has entered.
    """

    def __init__(self, node: str, bus: Bus, cache: Cache) -> None:
        super().__init__(bus, party(check_name("node", node)), ManagedCache(cache))
