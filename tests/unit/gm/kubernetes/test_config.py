"""How GM finds the API server, and what it says when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.errors import InvalidFieldError
from services.gm.cluster.kubernetes import client
from services.gm.cluster.kubernetes.client import load_configuration, own_namespace
from tests.kubernetes.kubeconfig import Config, write


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def kubeconfig(path: Path, server: str = "https://k.example.com:6443") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, Config(url=server, token="t0ken"))
    return path


async def test_a_named_file_comes_first_and_the_variable_before_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig(tmp_path / ".kube" / "config", "https://usual:1")
    assert (await load_configuration()).host == "https://usual:1"
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", f"{missing}:{kubeconfig(tmp_path / 'k', 'https://said:1')}")
    assert (await load_configuration()).host == "https://said:1"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert (await load_configuration(str(kubeconfig(tmp_path / "other")))).host == "https://k.example.com:6443"


async def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    loader = "kubernetes.aio.config.incluster_config."
    for name, text in (("TOKEN", "t0ken"), ("CERT", "-----BEGIN CERTIFICATE-----")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(f"{loader}SERVICE_{name}_FILENAME", str(tmp_path / name))
    found = await load_configuration()
    assert (found.host, found.api_key) == ("https://10.0.0.1:443", {"BearerToken": "bearer t0ken"})
    (tmp_path / "TOKEN").unlink()
    with pytest.raises(InvalidFieldError, match=r"KUBERNETES_SERVICE_HOST.*no usable service account"):
        await load_configuration()


@pytest.mark.parametrize("text", ["", "[", "a: b", '{"contexts": 5}', "\x00"])
async def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    with pytest.raises(InvalidFieldError, match=r"^--kubeconfig: .*write a kubeconfig") as caught:
        await load_configuration(str(path))
    assert "\n" not in str(caught.value)


async def test_a_file_that_is_not_there_is_named_with_where_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidFieldError, match=r"^--kubeconfig: '/no/where' is not accepted: there is no such file"):
        await load_configuration("/no/where")
    with pytest.raises(InvalidFieldError, match=r"^KUBECONFIG: '~/.kube/config'"):
        await load_configuration()
    monkeypatch.setenv("KUBECONFIG", "/no/where")
    with pytest.raises(InvalidFieldError, match=r"^KUBECONFIG: '/no/where'"):
        await load_configuration()


def test_the_namespace_is_what_was_said_else_the_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "NAMESPACE_FILE", tmp_path / "namespace")
    assert own_namespace("said") == "said"
    assert own_namespace() == "default"
    (tmp_path / "namespace").write_text("halimede\n")
    assert own_namespace() == "halimede"
