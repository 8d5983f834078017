"""`halimede certs` as a shell sees it: a site made, changed and shown; next steps; one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halimede.access.site import Site
from halimede.cli.app import app
from tests.unit.access.test_passwords import content

GIVEN = ("--node", "edge0", "--node", "cloud0", "--camera", "cam0", "--broker", "broker.example.com")


def run(*words: str | Path, code: int = 0) -> str:
    shown = CliRunner().invoke(app, ["certs", *map(str, words)], env={"COLUMNS": "200"})
    assert shown.exit_code == code, shown.output
    assert "Traceback" not in shown.output
    return " ".join(shown.output.split())


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    run("init", *GIVEN, folder)
    return folder


def test_init_makes_a_whole_site_and_says_what_to_do_next(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    shown = run("init", "--node", "edge0", "--broker", "b.example.com", "--install", "/etc/mosquitto/h", folder)
    for part in (
        "made ca, broker, gm, lc.edge0",
        "copy",
        "to /etc/mosquitto/h",
        "mqtts://b.example.com:8883",
        "ca.key",
    ):
        assert part in shown
    assert "certfile /etc/mosquitto/h/tls.crt" in (folder / "broker" / "mosquitto.conf").read_text()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"site.yaml", "ca.crt", "ca.key", "broker/acl", "broker/mosquitto.conf", "emqx/acl.conf"} <= names
    assert {"emqx/emqx.conf", "gm/tls.key", "nodes/edge0/lc/tls.crt", "operators/admin/ca.crt"} <= names


def test_install_may_be_given_again_and_leaves_all_users_as_they_are(site: Path) -> None:
    before = (site / "gm" / "tls.crt").read_bytes()
    for where in ("/etc/mosquitto/h", "/srv/h"):
        assert "made" not in run("init", "--install", where, site)
        assert f"acl_file {where}/acl" in (site / "broker" / "mosquitto.conf").read_text()
    assert "made" not in run("init", *GIVEN, "--install", "/etc/mosquitto/h", site)
    again = run("init", *GIVEN, site)
    assert "made" not in again
    assert "next:" not in again
    assert "acl_file /etc/mosquitto/h/acl" in (site / "broker" / "mosquitto.conf").read_text()
    assert "it has another site" in run("init", "--node", "edge1", "--install", "/srv/h", site, code=1)
    assert (site / "gm" / "tls.crt").read_bytes() == before


def test_users_come_and_go(site: Path) -> None:
    shown = run("add", "--node", "edge7", "--consumer", "viewer", site)
    assert "made lc.edge7, edge-worker.edge7, cloud-worker.edge7, consumer.viewer" in shown
    assert "SIGHUP" in shown
    assert "user lc.edge7" in (site / "broker" / "acl").read_text()
    assert "removed lc.edge7" in run("remove", "--node", "edge7", site)
    for path in ("broker/acl", "emqx/acl.conf", "site.yaml"):
        assert "edge7" not in (site / path).read_text()
    assert not (site / "nodes" / "edge7").exists()


def test_an_edited_site_file_is_followed(site: Path) -> None:
    path = site / "site.yaml"
    path.write_text(path.read_text().replace("- cloud0\n", "- cloud0\n- edge5\n"))
    assert "made lc.edge5" in run("init", site)


def test_a_prefix_is_before_every_topic(tmp_path: Path) -> None:
    run("init", "--node", "edge0", "--prefix", "factory/east", tmp_path / "site")
    shown = run("acl", tmp_path / "site")
    assert "topic read factory/east/node/edge0/+/sedna/downstream/+/+/insert" in shown
    assert '"other/node/edge0' in run("acl", "--for", "emqx", "--prefix", "other", tmp_path / "site")


def test_show_lists_everybody_and_fails_when_one_does_not_serve(site: Path) -> None:
    listed = CliRunner().invoke(app, ["certs", "show", str(site), "-o", "json"]).output
    rows = [json.loads(line) for line in listed.splitlines()]
    assert [row["user"] for row in rows][:3] == ["ca", "broker", "gm"]
    assert {row["days"] for row in rows[1:]} == {364}
    assert "lc.edge0 lc 364 days" in run("show", site)
    (site / "gm" / "tls.key").unlink()
    assert "no matching key" in run("show", site, code=1)
    (site / "gm" / "tls.crt").unlink()
    assert "gm gm missing" in run("show", site, code=1)
    assert "made gm" in run("init", site)
    run("show", site)


def test_rotation_of_one_of_all_and_of_the_authority(site: Path) -> None:
    shown = run("rotate", "--only", "lc.edge0", site)
    assert "made lc.edge0 kept" in shown
    assert "SIGHUP" not in shown
    assert "made broker, gm, lc.edge0" in run("rotate", site)
    assert "restart the broker" in run("rotate", "--ca", site)
    assert run("show", site).count("authority") == 2
    assert "has no certificate of the new authority" in run("rotate", "--finish", site, code=1)
    run("rotate", site)
    assert "the old authority is removed" in run("rotate", "--finish", site)
    assert "nothing to do" in run("rotate", "--finish", site)


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["init", "FOLDER"], 1, "--node: '' is not accepted: give at least one node"),
        (["init", "--node", "a/b", "FOLDER"], 1, "site.nodes[0]: 'a/b' is not accepted"),
        (["init", "--node", "a", "--node", "a", "FOLDER"], 1, "it is listed twice"),
        (["init", "--node", "a", "--broker", "a b", "FOLDER"], 1, "write a host name or an address"),
        (["init", "--node", "a", "--broker", "bröker", "FOLDER"], 1, "write a host name or an address"),
        (["init", "--node", "a", "--prefix", "a/#", "FOLDER"], 1, "site.prefix: '#' is not accepted"),
        (["init", "--node", "a", "--install", "here", "FOLDER"], 1, "write an absolute path"),
        (["init", "--node", "a", "--days", "0", "FOLDER"], 2, "--days"),
        (["init", "--node", "a", "/proc/nowhere"], 1, "cannot be used"),
        (["show", "FOLDER"], 1, "it has no site.yaml: create a site with `halimede certs init`"),
        (["add", "--node", "edge0", "SITE"], 1, "nodes: 'edge0' is not accepted: it is in this site already"),
        (["add", "SITE"], 1, "give --node"),
        (["remove", "--node", "edge9", "SITE"], 1, "it is not in this site"),
        (["init", "--node", "edge9", "SITE"], 1, "it has another site"),
        (["rotate", "--only", "lc.edge9", "SITE"], 1, "name: 'lc.edge9' is not accepted: it is not in this site"),
        (["rotate", "--ca", "--finish", "SITE"], 2, "give only one of"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, site: Path, words: list[str], code: int, part: str) -> None:
    before = content(site)
    places = {"FOLDER": str(tmp_path / "new"), "SITE": str(site)}
    assert part in run(*[places.get(word, word) for word in words], code=code)
    assert content(site) == before


@pytest.mark.parametrize(
    "text", ["nodes: [", "nodes: 7", "- a", "unknown: 1", "", "nodes: [edge0]\nbroker: []", "prefix: 2024-13-45"]
)
def test_a_broken_site_file_is_one_line(site: Path, text: str) -> None:
    (site / "site.yaml").write_text(text)
    assert "Error: " in run("show", site, code=1)


def test_an_error_of_the_site_files_yaml_names_its_line(site: Path) -> None:
    path = site / "site.yaml"
    path.write_text("nodes: [edge0]\nprefix: 2024-13-45\n")
    problem = "'2024-13-45' is no timestamp: correct it, or quote it as a text"
    assert f"Error: {path}:2: not valid YAML: {problem}" in run("show", site, code=1).replace("\n", "")


def test_a_site_of_hundreds_of_nodes_is_made_and_its_steps_are_not_all_shown(tmp_path: Path) -> None:
    nodes = [f"edge{number}" for number in range(200)]
    (tmp_path / "site.yaml").write_text(json.dumps({"nodes": nodes}))
    shown = run("init", tmp_path)
    assert "... (604)" in shown
    assert len(list(Site(nodes=nodes).principals())) == 602


def test_init_with_pools_names_the_command_for_kubernetes(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    shown = run("init", "--node", "edge0", "--pools", "--passwords", folder)
    assert f"halimede certs secrets {folder} | kubectl apply --server-side -f -" in shown
    assert "kubectl" not in run("init", "--node", "edge0", tmp_path / "other")


@pytest.mark.parametrize(
    ("fields", "warned"),
    [({"install": "/etc/h"}, True), ({"install": "/etc/h", "data": "/var/lib/h"}, False), ({}, False)],
)
def test_secrets_warn_of_a_place_that_could_not_write_the_messages_that_wait(
    tmp_path: Path, fields: dict[str, str], warned: bool
) -> None:
    written = {"nodes": ["edge0"], "pools": True, "passwords": True, "broker": ["cloud.example.com"]}
    bridge = {"name": "factory", "nodes": ["edge0"], **fields}
    (tmp_path / "site.yaml").write_text(json.dumps({**written, "bridges": [bridge]}))
    run("init", tmp_path)
    shown = CliRunner().invoke(app, ["certs", "secrets", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert ("site.bridges[0].data of place factory is empty" in shown.stderr) is warned
    assert "is empty" not in shown.stdout
