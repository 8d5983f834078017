"""docs/deploy.md and docs/kubernetes.md, typed in from top to bottom on an API server.

What needs a kubelet, controllers or a Docker daemon is not run: that what it names is there is all that is checked.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.running import digits
from tests.kubernetes.apiserver import Api, kind_of_server, on_double, on_server
from tests.kubernetes.garbage import empty
from tests.rendering import DEPLOY, ROOT, copy, documents, render, renderer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("kubectl") is None or renderer() is None, reason="no kubectl 1.27 or newer here"),
    # it applies and deletes the definitions of everybody
    pytest.mark.skipif(kind_of_server() == "cluster", reason="not on a cluster that somebody lends us"),
]
#: they need a kubelet or a controller
ELSEWHERE = ("kubectl -n halimede rollout", "kubectl -n halimede exec", "kubectl -n halimede port-forward", "docker")
NODES = ("edge0", "cloud0")
CLEANING = (
    "kubectl delete --ignore-not-found -f examples/kubernetes/models.yaml",
    "kubectl delete --ignore-not-found configmap digits-models",
    "kubectl delete --ignore-not-found secret halimede-edge-worker halimede-cloud-worker",
    "kubectl delete --ignore-not-found --wait=false -k deploy/overlays/mosquitto",
)


def blocks(document: str) -> list[str]:
    return [body for language, body in fenced((ROOT / document).read_text()) if language == "sh"]


def fenced(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def lines(document: str) -> list[str]:
    stripped = [re.split(r"\s+# ", line)[0].strip() for body in blocks(document) for line in body.splitlines()]
    return [line for line in stripped if line]


async def typed(line: str, folder: Path, kubeconfig: Path) -> str:
    # a clone of this repository, for paths in commands, and room for what they make
    for name in ("deploy", "examples"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    if kind_of_server() == "double":
        # it reads JSON alone, where `create` sends protobuf; publishes no schemas, for it checks bodies itself; and
        # knows no server-side apply
        line = re.sub(
            r"kubectl create (configmap [^&]*[^& ])",
            r"kubectl create \1 --dry-run=client -o yaml | kubectl apply -f -",
            line,
        )
        line = re.sub(r"kubectl apply( --server-side)?", "kubectl apply --validate=false", line)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        "bash", "-o", "pipefail", "-c", line, cwd=folder, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(90):
        output, _ = await process.communicate()
    assert process.returncode == 0, f"{line}\n{output.decode()}"
    return output.decode()


@pytest.fixture
async def cluster(real_server: tuple[Path, bool] | None, tmp_path: Path) -> AsyncIterator[Api]:
    """An API server with two nodes, from which the test's own things go away, in other namespaces as well."""
    digits()
    if real_server is None:
        # kubectl sends no token in plain text
        async with on_double(tmp_path, tls=True) as api:
            yield await with_nodes(api)
        return
    async with on_server(real_server[0], tmp_path, managed=real_server[1]) as api:
        yield await with_nodes(api)
        for line in CLEANING:
            await typed(line, tmp_path, api.kubeconfig)
        await empty(api.client, "halimede")


async def with_nodes(api: Api) -> Api:
    for name in NODES:
        await api.node(name)
    return api


def example(document: str, word: str) -> str:
    """Return the block of a file's text in which a word is."""
    (found,) = (body for language, body in fenced((ROOT / document).read_text()) if language == "text" and word in body)
    return found


def runnable(found: list[str]) -> list[str]:
    return [line for line in found if line.startswith(("kubectl", "halimede certs")) and not line.startswith(ELSEWHERE)]


async def test_the_lines_of_the_deployment_guide(cluster: Api, tmp_path: Path) -> None:
    wanted = runnable(lines("docs/deploy.md"))
    # removal is last, and by hand comes before it
    end = [line for line in wanted if line.startswith("kubectl delete")]
    patch = [line for line in wanted if line.startswith("kubectl patch")]
    said = {}
    for line in [each for each in wanted if each not in {*end, *patch}] + patch + end:
        # a server without controllers never gets rid of a namespace by itself
        wait = " --wait=false" if " delete -k" in line else ""
        said[line] = await typed(line + wait, tmp_path, cluster.kubeconfig)
    assert "digits" in said["kubectl get ji"]
    (secrets,) = (text for line, text in said.items() if line.startswith("kubectl delete secret"))
    assert {"halimede-gm", "halimede-lc", "halimede-broker", "halimede-edge-worker", "halimede-cloud-worker"} <= set(
        re.findall(r'secret "([a-z-]+)" deleted', secrets)
    )
    assert {line.split()[1] for line in said if line.startswith("kubectl")} >= {
        "apply", "create", "get", "describe", "label", "patch", "delete",
    }  # fmt: skip
    assert {line.split()[2] for line in said if line.startswith("halimede")} == {"init", "secrets"}


async def test_kubernetes_in_five_commands(cluster: Api, tmp_path: Path) -> None:
    found = lines("docs/kubernetes.md")
    assert len(found) == 5
    said = ""
    for line in found:
        # watching has no end
        said = await typed(line.replace(" --watch", ""), tmp_path, cluster.kubeconfig)
    assert "digits" in said


def test_what_is_not_run_names_what_is_there() -> None:
    names = {(body["kind"].lower(), body["metadata"]["name"]) for body in documents(copy("mosquitto").read_text())}
    names |= {("deploy", name) for kind, name in names if kind == "deployment"}
    left = [line for line in lines("docs/deploy.md") if line.startswith(ELSEWHERE)]
    assert len(left) >= 9
    for line in left:
        words = shlex.split(line)
        if words[0] == "docker":
            files = [word for before, word in pairwise(words) if before == "-f"]
            assert all((ROOT / file).is_file() for file in files)
            continue
        objects = [tuple(word.split("/")) for word in words if re.fullmatch(r"(deploy|deployment|daemonset)/\S+", word)]
        assert all(each in names for each in objects), line


@pytest.mark.parametrize("document", ["docs/deploy.md", "docs/kubernetes.md"])
def test_folders_that_documents_name_are_there(document: str) -> None:
    for path in re.findall(r"(?<!exec )\bdeploy/[a-z][a-z-]*(?:/[a-z-]+)*(?:\.[a-z]+)?", (ROOT / document).read_text()):
        assert (DEPLOY.parent / path).exists(), path


def test_an_overlay_of_ones_own_gives_the_broker_another_address(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    own = tmp_path / "deploy" / "overlays" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(example("docs/deploy.md", "kind: Kustomization"))
    found = {(body["kind"], body["metadata"]["name"]): body for body in documents(render(own))}
    assert found["Service", "halimede-broker"]["spec"]["type"] == "LoadBalancer"
    (told,) = (body["data"] for body in found.values() if body.get("data", {}).keys() >= {"node-broker"})
    outside, inside = "mqtts://broker.example.com:8883", "mqtts://halimede-broker.halimede.svc:8883"
    assert told == {"broker": inside, "node-broker": outside, "worker-broker": outside, "fetch-allow": "private"}


async def test_the_site_of_a_place(tmp_path: Path) -> None:
    (line,) = (line for line in lines("docs/deploy.md") if "certs init" in line and "--camera" in line)
    *_, site = shlex.split(line)
    nowhere = tmp_path / "kubeconfig"
    await typed(line, tmp_path, nowhere)
    with (tmp_path / site / "site.yaml").open("a") as file:
        file.write(example("docs/deploy.md", "bridges:"))
    await typed(f"halimede certs init {site}", tmp_path, nowhere)
    conf = (tmp_path / site / "bridges" / "factory" / "broker" / "mosquitto.conf").read_text()
    assert {text for text in conf.splitlines() if text.startswith("address ")} == {"address cloud.example.com:8883"}
    assert "halimede-place-factory" in await typed(f"halimede certs secrets {site}", tmp_path, nowhere)
