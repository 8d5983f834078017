"""The double of the API server as a process of its own, asked over its standard input: one word a line, JSON back.

users           {"url", "admin", "gm"}: where it is, and tokens
writes          GM's writes so far by verb and kind, its Lease's left out
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter

from tests.kubernetes.client import Client
from tests.kubernetes.double import Double
from tests.kubernetes.world import definitions, gm_rules

NAMESPACE = "default"


async def main() -> None:
    """Serve until the input ends."""
    async with Double() as double, Client(double.url, double.admin) as client:
        for definition in definitions():
            await client.create("CustomResourceDefinition", None, definition)
        rules = [{**rule, "namespaces": [NAMESPACE]} if "namespaces" in rule else rule for rule in gm_rules(NAMESPACE)]
        gm = double.user("gm", rules)
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while word := (await lines.readline()).decode().strip():
            if word == "users":
                answer = {"url": double.url, "admin": double.admin, "gm": gm}
            else:
                writes = [r for r in double.control.writes() if r.user == "gm" and r.resource != "leases"]
                answer = Counter(f"{r.verb} {r.resource}{'/' if r.subresource else ''}{r.subresource}" for r in writes)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    gc.disable()  # GM is measured, not the double's pauses of a quarter of a second
    asyncio.run(main())
