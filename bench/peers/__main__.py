"""One of the two processes of a way: ``python -m bench.peers <way> server|client [address]``."""

from __future__ import annotations

import contextlib
import importlib
import sys

from bench.peers import WAYS

if __name__ == "__main__":
    way, side, *where = sys.argv[1:]
    if way not in WAYS or side not in {"server", "client"}:
        raise SystemExit(f"python -m bench.peers {{{','.join(WAYS)}}} server|client [address]")
    with contextlib.suppress(KeyboardInterrupt):  # that is how a server ends
        getattr(importlib.import_module(f"bench.peers.{way}"), side)(*where)
