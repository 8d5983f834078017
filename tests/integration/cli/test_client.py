"""The client asks the global manager over the bus, is patient with a restart, and says what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client, UnreachableError
from halimede.messages import LogsRequest
from services.broker import MosquittoProcess
from tests.integration.cli.conftest import manager
from tests.integration.gm_world import model


async def test_a_refusal_names_reason_and_field(client: Client) -> None:
    with pytest.raises(ApiRefusedError) as refused:
        await client.apply(model("small") | {"spec": {"format": "onnx"}})
    assert (refused.value.reason, refused.value.field) == ("Invalid", "spec.url")
    with pytest.raises(ApiRefusedError, match="there is no default/models/absent") as refused:
        await client.get("models", "absent")
    assert refused.value.reason == "NotFound"


async def test_a_manager_that_comes_back_in_time_is_waited_for(
    mosquitto: MosquittoProcess, broker: BrokerAddress, tmp_path: Path
) -> None:
    async with Client.to(broker) as client:
        asked = asyncio.create_task(client.nodes())
        await asyncio.sleep(0.3)
        async with manager(mosquitto.url, tmp_path / "store.db"):
            assert await asked == []


async def test_a_node_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(UnreachableError, match="node edge7 does not answer"):
        await client.logs("edge7", LogsRequest(namespace="default", worker="w"))
