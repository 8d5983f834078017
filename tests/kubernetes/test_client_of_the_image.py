"""GM's image leaves out most of the Kubernetes client: what is left does all that GM does with it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes
import pytest

from services.gm.cluster.kubernetes.api_paths import Object
from tests.dockerfile import ROOT, images
from tests.kubernetes.apiserver import Api
from tests.kubernetes.each_group import EVERY
from tests.kubernetes.world import definitions
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
#: bytes that may be left of 126 MB
MOST = 6_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with the client as the image has it: the Dockerfile's own line is run on a copy."""
    folder = tmp_path / "venv" / "lib" / "python3" / "site-packages"
    source = Path(kubernetes.__file__).parent
    shutil.copytree(source, folder / "kubernetes", ignore=shutil.ignore_patterns("__pycache__"))
    (cut,) = re.findall(r"&& (find /venv/.*)", "\n".join(images()["gm"].lines("RUN")))
    subprocess.run(["sh", "-ec", cut.replace("/venv/", f"{tmp_path}/venv/")], check=True, timeout=patience(60))
    return folder


async def run(tree: Path, *words: str) -> tuple[int, str]:
    pipe, own = asyncio.subprocess.PIPE, {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=ROOT, env=os.environ | own, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_each_api_group_that_gm_uses_is_called_with_it(api: Api, tree: Path) -> None:
    for definition in definitions():
        await api.install(definition)
    code, output = await run(tree, "-m", "tests.kubernetes.each_group", str(api.kubeconfig), api.namespace)
    assert code == 0, output
    told: Object = json.loads(output.splitlines()[-1])
    assert told["client"] == str(tree / "kubernetes" / "__init__.py")
    assert told["called"] == [f"{each.version}/{each.plural}" for each in EVERY]
    assert told["generated"] == [], "GM imports nothing of what the image leaves out"


async def test_the_tests_of_gms_client_and_of_its_configuration_pass_with_it(tree: Path) -> None:
    files = ["tests/kubernetes/test_adapter_client.py", "tests/unit/gm/kubernetes/test_config.py"]
    code, output = await run(tree, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files)
    assert code == 0, output


def test_little_of_it_is_left(tree: Path) -> None:
    files = [path for path in tree.rglob("*.py") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST
    assert not [path for path in files if path.parent.name == "models" and path.name != "__init__.py"]
