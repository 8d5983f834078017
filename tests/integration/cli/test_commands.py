"""The commands against a real broker and global manager: what they print, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from halimede.api import kind_of
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands import apply, delete, describe, events, get, logs, version
from halimede.cli.commands.apply import DryRun
from halimede.cli.commands.get import show_nodes
from halimede.cli.options import Format
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.names import Key
from tests.integration.cli.conftest import DIGITS, Output, Printed, background
from tests.integration.gm_world import model
from tests.waiting import eventually, patience

JI, DIGITS_KEY = kind_of("ji"), Key("jointinferenceservices", "default", "digits")


async def test_a_folder_is_applied_in_order_and_again_changes_nothing(
    broker: BrokerAddress, client: Client, capsys: Output
) -> None:
    assert await apply.apply_manifests(broker, [DIGITS], "") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["model/digits-small", "created"],
        ["model/digits-big", "created"],
        ["jointinferenceservice/digits", "created"],
    ]
    assert await apply.apply_manifests(broker, [DIGITS], "") == 0
    assert capsys.readouterr().out.count(" unchanged") == 3
    url = (await client.get("models", "digits-small"))["spec"]["url"]
    assert url == Path(DIGITS, "models", "small.onnx").as_uri()


async def test_apply_waits_until_all_is_ready(
    broker: BrokerAddress, client: Client, nodes: Any, capsys: Output
) -> None:
    assert await apply.apply_manifests(broker, [DIGITS], "", wait_s=30) == 0
    assert capsys.readouterr().out.splitlines()[3:] == [
        "model/digits-small ready", "model/digits-big ready", "jointinferenceservice/digits ready",
    ]  # fmt: skip
    assert (await client.get(JI.plural, "digits"))["status"]["phase"] == "Running"


async def test_apply_that_waited_in_vain_ends_with_the_condition_that_holds_it_up(
    broker: BrokerAddress, client: Client, capsys: Output
) -> None:
    assert await apply.apply_manifests(broker, [DIGITS], "") == 0
    await client.wait_until(lambda body: "NoNode" in str(body), JI.plural, "digits", timeout_s=patience(10))
    capsys.readouterr()
    assert await apply.apply_manifests(broker, [DIGITS], "", wait_s=patience(0.4)) == 1
    said = capsys.readouterr()
    assert "jointinferenceservice/digits ready" not in said.out
    (held_up,) = [line for line in said.err.splitlines() if "ji/digits" in line]
    assert held_up.startswith("Error: not ready in time: ")
    assert "ji/digits: Pending: NoNode: spec." in held_up
    assert "What to do: set nodeName or nodeSelector to match a node" in held_up


async def test_a_dry_run_shows_what_would_be_done_and_does_it_not(
    broker: BrokerAddress, client: Client, capsys: Output
) -> None:
    for dry_run, shown in ((DryRun.SERVER, "created"), (DryRun.CLIENT, "valid")):
        assert await apply.apply_manifests(broker, [DIGITS], "", dry_run) == 0
        assert [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()] == [f"{shown} (dry run)"] * 3
        assert await client.list("models") == ([], False)


async def test_a_resource_that_the_manager_refuses_does_not_stop_the_others(
    broker: BrokerAddress, client: Client, capsys: Output, tmp_path: Path
) -> None:
    stale, fresh = model("a"), model("b")
    stale["metadata"]["resourceVersion"] = "99"
    file = tmp_path / "m.yaml"
    file.write_text(f"{json.dumps(stale)}\n---\n{json.dumps(fresh)}\n")
    assert await apply.apply_manifests(broker, [str(file)], "") == 1
    said = capsys.readouterr()
    assert "model/b created" in said.out
    assert "m.yaml: model/a:" in said.err


async def test_get_shows_a_table_with_counts_and_the_same_as_json_yaml_and_names(
    broker: BrokerAddress, digits_running: None, capsys: Output
) -> None:
    await get.show_resources(broker, JI, "", "", Format.WIDE)
    header, row = capsys.readouterr().out.splitlines()
    cells = dict(zip(header.split(), row.split(), strict=False))
    assert cells["NAMESPACE"] == "default"
    assert (cells["NAME"], cells["STATUS"], cells["SAMPLES"]) == ("digits", "Running", "10")
    assert (cells["EDGE"], cells["CLOUD"]) == ("8", "2")

    await get.show_resources(broker, JI, "digits", "default", Format.JSON)
    body = json.loads(capsys.readouterr().out)
    await get.show_resources(broker, JI, "digits", "default", Format.YAML)
    assert YAML(typ="safe").load(capsys.readouterr().out)["spec"] == body["spec"]
    await get.show_resources(broker, kind_of("models"), "", "default", Format.JSON)
    assert [b["kind"] for b in json.loads(capsys.readouterr().out)["items"]] == ["Model", "Model"]
    await get.show_resources(broker, kind_of("models"), "", "default", Format.NAME)
    assert capsys.readouterr().out.split() == ["model/digits-big", "model/digits-small"]


async def test_get_says_so_when_there_is_nothing(broker: BrokerAddress, gm: None, capsys: Output) -> None:
    await get.show_resources(broker, JI, "", "default", Format.TABLE)
    said = capsys.readouterr()
    assert said.out == ""
    assert "no jointinferenceservices in namespace default" in said.err
    with pytest.raises(ApiRefusedError, match="there is no default/jointinferenceservices/absent"):
        await get.show_resources(broker, JI, "absent", "default", Format.TABLE)


async def test_describe_says_spec_conditions_nodes_metrics_and_events(
    broker: BrokerAddress, digits_running: None, capsys: Output
) -> None:
    await describe.describe_resource(broker, JI, "digits", "default")
    text = capsys.readouterr().out
    for part in (
        "Status:      Running", "Margin(threshold_margin=0.19)", "cameras cam0, cam1",
        "nodes with node-role.kubernetes.io/cloud", "Conditions\n", "Nodes\n", "Metrics\n", "inference number",
        "upload cloud ratio", "0.0%", "Events\n", "Created",
    ):  # fmt: skip
        assert part in text
    await describe.describe_resource(broker, kind_of("model"), "digits-big", "default")
    assert "format: onnx" in capsys.readouterr().out


async def test_nodes_and_events_are_tables_and_json(
    broker: BrokerAddress, client: Client, nodes: Any, capsys: Output
) -> None:
    await client.wait_until(lambda body: body is None, JI.plural, "digits", timeout_s=5)
    await show_nodes(broker, Format.TABLE)
    table = capsys.readouterr().out
    assert ["edge0", "online", "edge"] in [line.split()[:3] for line in table.splitlines()]
    await show_nodes(broker, Format.JSON)
    assert {node["name"] for node in json.loads(capsys.readouterr().out)} == {"edge0", "cloud0"}
    await apply.apply_manifests(broker, [DIGITS], "")
    capsys.readouterr()
    await events.show_events(broker, events.EventSelection("default/models/digits-big"), Format.TABLE, follow=False)
    assert "Created" in capsys.readouterr().out
    await events.show_events(broker, events.EventSelection(limit=2), Format.JSON, follow=False)
    assert len(json.loads(capsys.readouterr().out)) == 2


async def test_delete_waits_until_the_nodes_have_let_go(
    broker: BrokerAddress, client: Client, digits_running: None, capsys: Output
) -> None:
    keys = delete.keys_of([DIGITS], "default")
    assert [key.name for key in keys] == ["digits", "digits-big", "digits-small"]
    assert await delete.delete_resources(broker, keys, wait=True, timeout_s=10, ignore_missing=False) == 0
    assert capsys.readouterr().out.count(" deleted") == 3
    assert (await client.list(JI.plural))[0] == []


async def test_delete_that_does_not_end_says_what_may_hold_it(
    broker: BrokerAddress, nodes: Any, digits_running: None, capsys: Output
) -> None:
    nodes["edge0"].obedient = False
    with pytest.raises(HalimedeError, match=r"still being deleted after 0\.5 s"):
        await delete.delete_resources(broker, [DIGITS_KEY], wait=True, timeout_s=0.5, ignore_missing=False)
    capsys.readouterr()
    await get.show_resources(broker, JI, "", "default", Format.TABLE)
    assert "Terminating" in capsys.readouterr().out


async def test_deleting_what_is_not_there_fails_unless_that_is_fine(
    broker: BrokerAddress, gm: None, capsys: Output
) -> None:
    key = Key("models", "default", "absent")
    assert await delete.delete_resources(broker, [key], wait=True, timeout_s=5, ignore_missing=False) == 1
    assert "there is no default/models/absent" in capsys.readouterr().err
    assert await delete.delete_resources(broker, [key], wait=True, timeout_s=5, ignore_missing=True) == 0


async def test_watch_prints_a_line_for_each_change_until_it_is_ended(
    broker: BrokerAddress, nodes: Any, printed: Printed
) -> None:
    async with background(get.watch_resources(broker, JI, "", "default", Format.TABLE)):
        await eventually(lambda: "NAME" in printed.out)
        await apply.apply_manifests(broker, [DIGITS], "")
        await eventually(lambda: "Running" in printed.out)
        await delete.delete_resources(broker, [DIGITS_KEY], wait=True, timeout_s=10, ignore_missing=False)
        await eventually(lambda: "Deleted" in printed.out)


async def test_logs_are_those_of_a_service_of_one_of_its_roles_of_a_node_or_of_a_worker(
    broker: BrokerAddress, client: Client, nodes: Any, capsys: Output
) -> None:
    await apply.apply_manifests(broker, [DIGITS], "")
    nodes["edge0"].logs["digits-edge-edge0"] = "one\ntwo\nthree\n"
    nodes["cloud0"].logs["digits-cloud-cloud0"] = "four\n"
    capsys.readouterr()
    assert await logs.show_logs(broker, logs.LogSelection("digits", "default", tail=-1), follow=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"digits-edge-edge0  {line}" for line in ("one", "two", "three")),
        "digits-cloud-cloud0  four",
    ]
    for selection, lines in (
        (logs.LogSelection("digits-edge-edge0", "default", tail=2), ["two", "three"]),
        (logs.LogSelection("digits-edge-edge0", "default", "edge0", tail=1), ["three"]),
        (logs.LogSelection("", "default", "edge0", tail=1), ["three"]),
        (logs.LogSelection("digits", "default", role="edge", tail=1), ["three"]),
        (logs.LogSelection("digits", "default", role="cloud"), ["four"]),
    ):
        assert await logs.show_logs(broker, selection, follow=False) == 0
        assert capsys.readouterr().out.splitlines() == lines
    long_lines = [character * 10_000 for character in "abcdefgh"]
    nodes["edge0"].logs["digits-edge-edge0"] = "".join(f"{line}\n" for line in long_lines)
    for count, lines in ((2, long_lines[-2:]), (9, long_lines)):
        selection = logs.LogSelection("digits-edge-edge0", "default", "edge0", tail=count)
        assert await logs.show_logs(broker, selection, follow=False) == 0
        assert capsys.readouterr().out.splitlines() == lines, "each is whole"


async def test_logs_follow_new_lines(broker: BrokerAddress, nodes: Any, printed: Printed) -> None:
    written = nodes["edge0"].logs
    written["w"] = "old\n" * 3 + "last\n"
    async with background(logs.show_logs(broker, logs.LogSelection("w", "default", "edge0", tail=1), follow=True)):
        await eventually(lambda: printed.out == "last\n")
        written["w"] += "half"
        await asyncio.sleep(0.6)
        written["w"] += " and half\n"
        await eventually(lambda: printed.out == "last\nhalf and half\n")


async def test_logs_of_what_is_not_there_say_what_there_is(
    broker: BrokerAddress, client: Client, nodes: Any, capsys: Output
) -> None:
    await apply.apply_manifests(broker, [DIGITS], "")
    with pytest.raises(HalimedeError, match="worker of namespace default: digits, digits-cloud-cloud0"):
        await logs.show_logs(broker, logs.LogSelection("digit", "default", tail=1), follow=False)
    assert await logs.show_logs(broker, logs.LogSelection("digits-edge-edge0", "default", tail=1), follow=False) == 1
    assert "there is no worker digits-edge-edge0 on this node" in capsys.readouterr().err
    with pytest.raises(InvalidFieldError, match="use a node: cloud0, edge0"):
        await logs.show_logs(broker, logs.LogSelection("", "default", "edge9"), follow=False)


async def test_version_shows_both_sides(broker: BrokerAddress, gm: None, capsys: Output) -> None:
    assert await version.show_version(broker) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["client", "gm"]
