"""Prints statuses and results of services with aiomqtt: python consumer.py mqtt://user:password@host:1883."""

import asyncio
import json
import sys
from urllib.parse import urlparse

import aiomqtt

RESULTS, STATUSES = "default/sedna/inference/+/result", "default/sedna/status/#"


async def main(broker: str) -> None:
    """Print one line for each status and each result until Ctrl-C. A repeated id is the same frame: skip it."""
    url, seen = urlparse(broker), set()
    async with aiomqtt.Client(
        url.hostname or "127.0.0.1",
        url.port or 1883,
        username=url.username,
        password=url.password,
        protocol=aiomqtt.ProtocolVersion.V5,
    ) as client:
        await client.subscribe(RESULTS, qos=1)
        await client.subscribe(STATUSES, qos=1)
        async for message in client.messages:
            if not message.payload:  # an empty retained message: the resource was deleted
                print(f"{message.topic} deleted", flush=True)
                continue
            body = json.loads(message.payload)
            if message.topic.matches(STATUSES):
                print(f"{body['kind']} {body['name']} {body['status']['phase']}", flush=True)
            elif body["id"] not in seen:
                seen.add(body["id"])
                print(f"{body['service']} {body.get('camera', '')} {body.get('label')} by {body['by']}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
