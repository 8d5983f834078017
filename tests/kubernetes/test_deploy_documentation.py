"""docs/deploy.md, docs/kubernetes.md and docs/kubeedge.md, typed in from top to bottom on an API server.

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

from services.gm.workloads import pod_settings
from tests.e2e.running import digits, running
from tests.kubernetes.apiserver import Api, kind_of_server
from tests.kubernetes.client import Body
from tests.kubernetes.garbage import empty
from tests.rendering import DEPLOY, ROOT, copy, documents, render, renderer
from tests.unit.deploy.test_rendering import containers
from tests.waiting import patience

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
REGISTRY = "registry.example.com"
#: more than `halimede results` waits for
PICTURES = 20
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
        applied = r"kubectl create \1 --dry-run=client -o yaml | kubectl apply -f -"
        line = re.sub(r"kubectl create (configmap [^&]*[^& ])", applied, line)
        line = re.sub(r"kubectl apply( --server-side)?", "kubectl apply --validate=false", line)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = {"PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(folder), "REGISTRY": REGISTRY}
    process = await asyncio.create_subprocess_exec(
        "bash", "-o", "pipefail", "-c", line, cwd=folder, env=os.environ | told,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(patience(90)):
        output, _ = await process.communicate()
    assert process.returncode == 0, f"{line}\n{output.decode()}"
    return output.decode()


@pytest.fixture
async def cluster(secured: Api, tmp_path: Path) -> AsyncIterator[Api]:
    """An API server with two nodes, from which the test's own things go away, in other namespaces as well."""
    digits()
    for name in NODES:
        await secured.node(name)
    yield secured
    if secured.double is None:
        for line in CLEANING:
            await typed(line, tmp_path, secured.kubeconfig)
        await empty(secured.client, "halimede")


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
    await typed(own_overlay(), tmp_path, cluster.kubeconfig)
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
    assert {line.split()[2] for line in said if line.startswith("halimede")} == {"init", "add", "secrets"}
    (changed,) = (text for line, text in said.items() if line.startswith("kubectl set image"))
    assert "digits-models image updated" in changed


async def test_kubernetes_in_five_commands(cluster: Api, tmp_path: Path) -> None:
    found = lines("docs/kubernetes.md")
    assert len(found) == 5
    said = ""
    for line in found:
        # watching has no end
        said = await typed(line.replace(" --watch", ""), tmp_path, cluster.kubeconfig)
    assert "digits" in said


def named(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def own_overlay() -> str:
    """Return the lines that write the overlay of another registry."""
    (block,) = (body for body in blocks("docs/deploy.md") if "own/kustomization.yaml" in body)
    return "\n".join(line for line in block.splitlines() if not line.startswith("kubectl"))


async def test_one_name_of_a_registry_moves_all_images(tmp_path: Path) -> None:
    await typed(own_overlay(), tmp_path, tmp_path / "kubeconfig")
    found = list(documents(render(tmp_path / "own")))
    pods = [body["spec"]["template"] for body in found if body["kind"] in {"Deployment", "DaemonSet"}]
    images = {container["image"] for pod in pods for container in containers(pod)}
    assert images == {f"{REGISTRY}/halimede/gm:0.1.0", f"{REGISTRY}/halimede/lc:0.1.0", "eclipse-mosquitto:2.0"}
    (told,) = (body["data"] for body in found if body.get("data", {}).keys() >= {"node-broker"})
    (gm,) = (body for body in found if named(body) == ("Deployment", "halimede-gm"))
    (container,) = gm["spec"]["template"]["spec"]["containers"]
    maps = {each["name"]: each.get("valueFrom", {}).get("configMapKeyRef") for each in container["env"]}
    environment = {name: told[found["key"]] for name, found in maps.items() if found}
    settings = pod_settings.read(DEPLOY / "base" / "pods.json", environment)
    assert settings.worker_image == f"{REGISTRY}/halimede/worker:0.1.0"


async def test_publish_and_watch(tmp_path: Path) -> None:
    """A person behind `kubectl port-forward`; the forwarded port is that of a broker on this machine."""
    (block,) = (body for body in blocks("docs/deploy.md") if "halimede publish" in body)
    pictures = tmp_path / "examples" / "digits" / "pictures"
    pictures.mkdir(parents=True)
    for number, picture in enumerate(digits()[:PICTURES]):
        (pictures / f"{number:02}.png").write_bytes(picture)
    async with running(tmp_path / "home") as system:
        await system.apply(ROOT / "examples" / "digits")
        (tmp_path / "site").symlink_to(system.home / "site")
        block = f"{block.replace('127.0.0.1:1883', f'127.0.0.1:{system.port}')}\nwait"
        # nothing may go on after a failure
        block = block.replace("halimede results", "timeout 60 halimede results")
        said = await typed(block, tmp_path, tmp_path / "kubeconfig")
    assert re.search(r"cam0 +\d+ +\d ", said), said
    assert "digits" in said
    assert "accepted, with" in said


async def test_the_lines_of_the_page_for_kubeedge(cluster: Api, tmp_path: Path) -> None:
    await typed("kubectl apply -k deploy/overlays/mosquitto", tmp_path, cluster.kubeconfig)
    await typed("kubectl apply -f examples/kubernetes/", tmp_path, cluster.kubeconfig)
    for line in lines("docs/kubeedge.md"):
        await typed(line, tmp_path, cluster.kubeconfig)
    for size in ("small", "big"):
        line = f"kubectl get models.sedna.io digits-{size} -o jsonpath={{.spec.url}}"
        assert await typed(line, tmp_path, cluster.kubeconfig) == f"http://192.0.2.10:31080/{size}.onnx"
    service = await typed("kubectl get service digits-models -o yaml", tmp_path, cluster.kubeconfig)
    assert "nodePort: 31080" in service
    assert "type: NodePort" in service


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


@pytest.mark.parametrize("document", ["docs/deploy.md", "docs/kubeedge.md", "docs/kubernetes.md"])
def test_folders_that_documents_name_are_there(document: str) -> None:
    for path in re.findall(r"(?<!exec )\bdeploy/[a-z][a-z-]*(?:/[a-z-]+)*(?:\.[a-z]+)?", (ROOT / document).read_text()):
        assert (DEPLOY.parent / path).exists(), path


def test_an_overlay_of_ones_own_gives_the_broker_another_address(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    own = tmp_path / "deploy" / "overlays" / "own"
    own.mkdir()
    text = example("docs/deploy.md", "kind: Kustomization")
    (own / "kustomization.yaml").write_text(text)
    found = {named(body): body for body in documents(render(own))}
    assert found["Service", "halimede-broker"]["spec"]["type"] == "LoadBalancer"
    (told,) = (body["data"] for body in found.values() if body.get("data", {}).keys() >= {"node-broker"})
    outside, inside = "mqtts://broker.example.com:8883", "mqtts://halimede-broker.halimede.svc:8883"
    private = {"fetch-allow": "private", "registry": ""}
    assert told == {"broker": inside, "node-broker": outside, "worker-broker": outside, **private}
    patches = example("docs/deploy.md", "value: NodePort")
    (own / "kustomization.yaml").write_text(text.partition("patches:")[0] + patches)
    (service,) = (body["spec"] for body in documents(render(own)) if named(body) == ("Service", "halimede-broker"))
    assert service["type"] == "NodePort"
    assert service["ports"] == [{"name": "mqtts", "port": 8883, "targetPort": "mqtt", "nodePort": 31883}]


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
