"""What deploy/ mounts and what `halimede certs secrets` writes fit together: tried on a Mosquitto with these files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from halimede.access.emqx import users_csv
from halimede.access.site import Site
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError, NotAllowedError
from services.broker import MosquittoProcess
from services.gm.workloads import pod_settings
from services.lc.credentials import NodeCredentials
from tests import typed
from tests.ports import free_port
from tests.programs import run_program, run_python
from tests.rendering import DEPLOY, ROOT, documents
from tests.unit.deploy.test_rendering import objects, one, pod_of

pytestmark = pytest.mark.timeout(120)
MODES = pytest.mark.parametrize("overlay", ["mosquitto", "tls"])
CONF = "/etc/halimede/broker"


@dataclass
class Made:
    """A site, its Secrets as folders of files, and how it was asked for."""

    site: Path
    mounts: dict[str, Path]
    secure: bool


def halimede(*words: str | Path, code: int = 0) -> str:
    done = typed.halimede(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def make(folder: Path, overlay: str) -> Made:
    site = folder / "site"
    form = [] if overlay == "tls" else ["--passwords"]
    nodes = ["--node", "edge0", "--node", "cloud0", "--broker", "127.0.0.1"]
    halimede("certs", "init", "--pools", *form, *nodes, site)
    mounts = {}
    for secret in documents(halimede("certs", "secrets", "--workers-in", "vision", site)):
        path = folder / "mounts" / secret["metadata"]["namespace"] / secret["metadata"]["name"]
        # as a kubelet mounts a Secret: each key is a symbolic link
        (path / "..1").mkdir(parents=True)
        (path / "..data").symlink_to("..1")
        for key, value in secret["data"].items():
            (path / "..1" / key).write_bytes(base64.b64decode(value))
            (path / "..1" / key).chmod(0o600)
            (path / key).symlink_to(f"..data/{key}")
        mounts[secret["metadata"]["name"]] = path
    return Made(site, mounts, overlay == "tls")


def conf(overlay: str) -> list[str]:
    return str(one(objects(overlay), "ConfigMap", "halimede-broker-")["data"]["mosquitto.conf"]).splitlines()


GM, LC = pod_of(objects("mosquitto"), "halimede-gm"), pod_of(objects("mosquitto"), "halimede-lc", "DaemonSet")


def take_credentials(made: Made, node: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run what the init container of the DaemonSet runs, with other paths."""
    (container,) = (each for each in LC["initContainers"] if each["name"] == "credentials")
    (script,) = container["args"]
    script = script.replace("/secrets", str(made.mounts["halimede-lc"])).replace(CONF, str(folder))
    return run_program(*container["command"], script, env={"PATH": os.environ["PATH"], "NODE_NAME": node})


@MODES
async def test_everyone_whose_secret_is_mounted_is_let_in_and_nobody_else(tmp_path: Path, overlay: str) -> None:
    made = make(tmp_path, overlay)
    lines = [line.replace(CONF, str(made.mounts["halimede-broker"])) for line in conf(overlay)]
    access = [line for line in lines if line and not line.startswith(("#", "listener", "log_", "persistence"))]
    taken = tmp_path / "lc"
    assert take_credentials(made, "edge0", taken).returncode == 0
    async with MosquittoProcess(tmp_path / "run", port=free_port(), access=access, secure=made.secure) as broker:
        folders = {name: made.mounts[name] for name in ("halimede-gm", "halimede-edge-worker", "halimede-cloud-worker")}
        for folder in (*folders.values(), taken / "lc"):
            await MqttBus("t", MqttSettings.from_url(broker.url, credentials=folder)).check_reachable()
        with pytest.raises(NotAllowedError if not made.secure else HalimedeError):
            await MqttBus("t", MqttSettings.from_url(broker.url)).check_reachable()
        other = make(tmp_path / "other", overlay)
        stranger = MqttSettings.from_url(broker.url, credentials=other.mounts["halimede-gm"])
        with pytest.raises(HalimedeError):
            await MqttBus("t", stranger).check_reachable()


@MODES
def test_mosquitto_2_1_opens_access_rules_and_passwords_by_no_symbolic_link(tmp_path: Path, overlay: str) -> None:
    made = make(tmp_path, overlay)
    lines = [line.replace(CONF, str(made.mounts["halimede-broker"])).split() for line in conf(overlay)]
    paths = [Path(line[1]) for line in lines if line[:1] in (["acl_file"], ["password_file"])]
    assert len(paths) == 1 + (overlay == "mosquitto")
    assert all(path.is_file() and not path.is_symlink() for path in paths)


@MODES
def test_a_local_controller_gets_its_own_credentials_alone(tmp_path: Path, overlay: str) -> None:
    made = make(tmp_path, overlay)
    taken = tmp_path / "lc"
    assert take_credentials(made, "edge0", taken).returncode == 0
    NodeCredentials(taken).check(secure=made.secure, workers=False)
    own = {path.name: path.read_bytes() for path in (taken / "lc").iterdir()}
    assert own == {path.name: path.read_bytes() for path in (made.site / "nodes" / "edge0" / "lc").iterdir()}
    stranger = take_credentials(made, "edge1", tmp_path / "none")
    assert stranger.returncode == 1
    assert "nothing for node edge1" in stranger.stderr
    assert "halimede certs add --node edge1" in stranger.stderr


@MODES
def test_printing_secrets_again_prints_the_same(tmp_path: Path, overlay: str) -> None:
    made = make(tmp_path, overlay)
    assert halimede("certs", "secrets", made.site) == halimede("certs", "secrets", made.site)


def test_certificates_of_a_site_carry_the_services_name(tmp_path: Path) -> None:
    """The names that docs/deploy.md gives to --broker are those by which the manifests reach it."""
    (data,) = (b["data"] for b in objects("tls") if b["kind"] == "ConfigMap" and "broker" in b["data"])
    addresses = {address for name, address in data.items() if name.endswith("broker")}
    assert addresses == {"mqtts://halimede-broker.halimede.svc:8883"}
    assert "--broker halimede-broker.halimede.svc" in (ROOT / "docs" / "deploy.md").read_text()


def test_secrets_need_users_for_pods_and_a_site_that_is_whole(tmp_path: Path) -> None:
    halimede("certs", "init", "--node", "edge0", tmp_path / "site")
    said = halimede("certs", "secrets", tmp_path / "site", code=1)
    assert "site.pools: False is not accepted" in said
    assert "pools: true" in said
    halimede("certs", "init", "--pools", "--node", "edge0", tmp_path / "other")
    (tmp_path / "other" / "gm" / "tls.key").unlink()
    assert "gm/tls.key is not there" in halimede("certs", "secrets", tmp_path / "other", code=1)
    assert "--namespace" in halimede("certs", "secrets", "--namespace", "No", tmp_path / "other", code=1)


def test_the_options_that_manifests_give_exist() -> None:
    for pod, program in ((GM, "gm"), (LC, "lc")):
        (container,) = pod["containers"]
        shown = run_python("-m", "halimede", program, "--help", cwd=ROOT, check=True).stdout
        options = [word for word in container["args"] if word.startswith("--")]
        assert options
        assert all(option in shown for option in options), (options, shown)


def test_the_settings_of_pods_are_read_by_gm() -> None:
    (container,) = GM["containers"]
    names = {each["name"] for each in container["env"]}
    assert {"HALIMEDE_PODS_BROKER", "POD_NAME", "POD_NAMESPACE"} <= names
    broker = {"HALIMEDE_PODS_BROKER": "mqtt://broker:1883"}
    read = pod_settings.read(DEPLOY / "base" / "pods.json", broker)
    defaults = pod_settings.parse({}, broker)
    for image, default in ((read.worker_image, defaults.worker_image), (read.fetcher_image, defaults.fetcher_image)):
        assert image.split(":")[0] == default.split(":")[0]
    assert (read.host_paths, read.privileged, read.credentials) == ((), False, True)
    assert (read.edge_secret, read.cloud_secret) == ("halimede-edge-worker", "halimede-cloud-worker")
    # where LCs keep models is where pods look for them
    (home,) = (v["hostPath"]["path"] for v in LC["volumes"] if "hostPath" in v)
    assert read.node_cache == f"{home}/nodes"


def test_the_overlay_for_scripts_opens_one_folder_and_names_one_image_and_changes_nothing_else() -> None:
    base, scripts = (json.loads((DEPLOY / name / "pods.json").read_text()) for name in ("base", "overlays/scripts"))
    assert scripts == base | {"hostPaths": ["/code"], "images": {"tensorflow:1.18": base["workerImage"]}}


async def test_emqx_gets_the_hashes_of_the_same_passwords(tmp_path: Path) -> None:
    made = await asyncio.to_thread(make, tmp_path, "mosquitto")
    secrets = list(documents(halimede("certs", "secrets", "--for", "emqx", made.site)))
    broker = one(secrets, "Secret", "halimede-broker")["data"]
    assert set(broker) == {"users.csv", "acl.conf", "cookie"}
    rows = base64.b64decode(broker["users.csv"]).decode().splitlines()
    assert rows[0] == "user_id,password_hash,salt,is_superuser"
    known = {name: (hash_, salt, root) for name, hash_, salt, root in (row.split(",") for row in rows[1:])}
    password = (made.mounts["halimede-gm"] / "password").read_text().strip()
    hash_, salt, root = known["gm"]
    assert hashlib.sha256((password + salt).encode()).hexdigest() == hash_
    assert root == "false"
    assert password not in json.dumps(rows)
    assert {"lc.edge0", "edge-worker", "cloud-worker"} <= set(known)
    assert users_csv(Site(nodes=["edge0", "cloud0"], pools=True), made.site).splitlines() == rows


def test_the_brokers_of_deploy_keep_the_limits_of_the_embedded_one() -> None:
    names = ("max_packet_size", "max_inflight_messages", "max_queued_messages", "persistence", "set_tcp_nodelay")
    embedded = {line for line in MosquittoProcess(ROOT)._configuration(1883) if line.startswith(names)}
    for overlay in ("mosquitto", "tls"):
        assert {line for line in conf(overlay) if line.startswith(names)} == embedded
