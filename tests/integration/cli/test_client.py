"""The client asks the global manager over the bus, is patient with a restart, and says what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.bus.mqtt import MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client, UnreachableError
from halimede.messages import LogsRequest
from services.broker import MosquittoProcess
from tests.integration.cli.conftest import manager
from tests.integration.gm_world import model


async def test_apply_says_created_unchanged_and_configured(client: Client) -> None:
    assert (await client.apply(model("small")))[0] == "created"
    assert (await client.apply(model("small")))[0] == "unchanged"
    outcome, stored = await client.apply(model("small", url="/other.onnx"))
    assert (outcome, stored["metadata"]["generation"]) == ("configured", 2)


async def test_what_was_applied_is_found_listed_and_deleted(client: Client) -> None:
    await client.apply(model("a"))
    await client.apply(model("b"))
    assert (await client.get("models", "a"))["spec"]["url"] == "/models/a.onnx"
    assert [b["metadata"]["name"] for b in (await client.list("models"))[0]] == ["a", "b"]
    assert (await client.list("models", "elsewhere"))[0] == []
    await client.delete("models", "a")
    assert await client.wait_until(lambda body: body is None, "models", "a", timeout_s=5) is None
    assert (await client.events(about="default/models/b"))[0].reason == "Created"


async def test_the_manager_says_its_version(client: Client) -> None:
    assert (await client.version())["version"]


async def test_a_refusal_names_reason_and_field(client: Client) -> None:
    with pytest.raises(ApiRefusedError) as refused:
        await client.apply(model("small") | {"spec": {"format": "onnx"}})
    assert (refused.value.reason, refused.value.field) == ("Invalid", "spec.url")
    with pytest.raises(ApiRefusedError, match="there is no default/models/absent") as refused:
        await client.get("models", "absent")
    assert refused.value.reason == "NotFound"


async def test_without_a_broker_it_says_what_to_start() -> None:
    with pytest.raises(UnreachableError, match=r"no MQTT broker answers at 127\.0\.0\.1:9 .*halimede up"):
        async with Client.to(BrokerAddress(MqttSettings("127.0.0.1", 9), "--broker")):
            pass


async def test_without_a_manager_it_says_what_to_start(broker: BrokerAddress) -> None:
    async with Client.to(broker, patience_s=0.1) as client:
        with pytest.raises(UnreachableError, match=r"no global manager is connected .*halimede up"):
            await client.nodes()


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
