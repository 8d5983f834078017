"""The double as `kubectl` sees it: a client that nobody here wrote (skipped where there is none)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.kubernetes.apiserver import Api, kind_of_server, on_double
from tests.kubernetes.things import DEFINITION, THING, deployment, thing
from tests.waiting import patience

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@pytest.fixture
async def secured(api: Api, tmp_path: Path) -> AsyncIterator[Api]:
    """The API server over TLS: kubectl sends no token in plain text."""
    if kind_of_server() != "double":
        yield api
        return
    (tmp_path / "tls").mkdir()
    async with on_double(tmp_path / "tls", tls=True) as found:
        yield found


async def kubectl(api: Api, *arguments: str, body: dict[str, Any] | None = None) -> str:
    """Run kubectl in the test's namespace and return what it prints."""
    files = []
    if body is not None:
        with (api.folder / "body.yaml").open("w") as file:
            YAML(typ="safe").dump(body, file)
        files = ["-f", str(api.folder / "body.yaml")]
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL),
        f"--kubeconfig={api.kubeconfig}",
        f"--cache-dir={api.folder / 'cache'}",
        f"--namespace={api.namespace}",
        *arguments,
        *files,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"HOME": str(api.folder), "PATH": os.environ["PATH"]},
    )
    async with asyncio.timeout(patience(60.0)):
        said, _ = await process.communicate()
    text = said.decode()
    assert process.returncode == 0, text
    return text


async def test_apply_twice_get_by_short_name_and_delete(secured: Api) -> None:
    await secured.install(DEFINITION)
    body = {**thing("one", mode="slow"), "metadata": {"name": "one"}}
    assert "created" in await kubectl(secured, "apply", body=body)
    assert "unchanged" in await kubectl(secured, "apply", body=body)
    body["spec"]["size"] = 3
    assert "configured" in await kubectl(secured, "apply", body=body)
    await secured.client.patch(THING, secured.namespace, "one", {"status": {"phase": "Running", "active": 2}}, "status")
    shown = (await kubectl(secured, "get", "th")).splitlines()
    assert shown[0].split() == ["NAME", "PHASE", "ACTIVE", "READY", "AGE"]
    assert shown[1].split()[:3] == ["one", "Running", "2"]
    assert "deleted" in await kubectl(secured, "delete", "thing", "one")
    assert "No resources found" in await kubectl(secured, "get", "things")


async def test_built_in_kinds_are_applied_and_edited(secured: Api) -> None:
    body = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment("web")}
    assert "created" in await kubectl(secured, "apply", body=body)
    assert "unchanged" in await kubectl(secured, "apply", body=body)
    body["spec"]["replicas"] = 4
    assert "configured" in await kubectl(secured, "apply", body=body)
    assert "labeled" in await kubectl(secured, "label", "deployment", "web", "a=b")
    found = await secured.client.get("Deployment", secured.namespace, "web")
    assert (found["spec"]["replicas"], found["metadata"]["labels"]) == (4, {"a": "b"})


async def test_a_mistake_is_shown_with_its_field(secured: Api) -> None:
    await secured.install(DEFINITION)
    with pytest.raises(AssertionError, match=r"spec\.mode: Unsupported value"):
        await kubectl(secured, "apply", body=thing("one", mode="odd"))
    with pytest.raises(AssertionError, match=r'unknown field "spec\.what"'):
        await kubectl(secured, "apply", body=thing("one", what=1))


async def test_a_condition_is_waited_for(secured: Api) -> None:
    await secured.install(DEFINITION)
    assert "condition met" in await kubectl(
        secured, "wait", "--for=condition=Established", f"crd/{DEFINITION['metadata']['name']}", "--timeout=20s"
    )
