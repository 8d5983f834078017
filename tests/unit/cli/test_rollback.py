"""Which version a rollback goes back to, and what it changes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from halimede.cli.commands.rollback import choose, kubectl, patch
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.names import Key

A, B, C = "a" * 64, "b" * 64, "c" * 64


def served(*versions: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"version": version, "url": url, "digest": digest} for version, url, digest in versions]


def body(spec: dict[str, Any], versions: list[dict[str, str]], **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "small", "namespace": "default", "generation": 3},
        "spec": {"format": "onnx", **spec},
        "status": {"observedGeneration": 3, "versions": versions, **status},
    }


TWO = served(("bbbb", "/b.onnx", B), ("aaaa", "/a.onnx", A))


def test_the_version_before_the_present_one() -> None:
    model = body({"url": "/b.onnx", "sha256": B}, TWO)
    assert choose(model, "").version == "aaaa"
    assert patch(model, choose(model, "")) == {"url": "/a.onnx", "sha256": A}


def test_one_that_never_served_goes_back_to_the_latest_that_did() -> None:
    model = body({"url": "/c.onnx", "sha256": C}, TWO)
    assert choose(model, "").version == "bbbb"


def test_a_model_without_a_checksum_is_known_by_what_nodes_verified() -> None:
    model = body({"url": "/same.onnx"}, TWO, model={"digest": B})
    assert choose(model, "").version == "aaaa"
    older = {**model, "status": {**model["status"], "observedGeneration": 2}}
    assert choose({**older, "spec": {"url": "/b.onnx", "format": "onnx"}}, "").version == "aaaa"


@pytest.mark.parametrize("to", ["aaaa", "aaaaaaaaaaaa"])
def test_a_version_by_its_name_or_the_beginning_of_its_digest(to: str) -> None:
    assert choose(body({"url": "/c.onnx", "sha256": C}, TWO), to).digest == A


@pytest.mark.parametrize("to", ["aa", "9", "dddd"])
def test_a_version_that_nobody_knows_is_named_with_those_that_there_are(to: str) -> None:
    with pytest.raises(InvalidFieldError, match="bbbb, aaaa"):
        choose(body({"url": "/c.onnx"}, TWO), to)


def test_with_nothing_to_go_back_to_it_says_so() -> None:
    with pytest.raises(HalimedeError, match="served: aaaa"):
        choose(body({"url": "/a.onnx", "sha256": A}, served(("aaaa", "/a.onnx", A))), "")


def test_listed_versions_are_chosen_by_name() -> None:
    listed = [{"version": "1", "url": "/a.onnx"}, {"version": "2", "url": "/b.onnx"}]
    versions = served(("2", "/b.onnx", B), ("1", "/a.onnx", A))
    for spec in ({"versions": listed, "targetVersion": "2"}, {"versions": listed}):
        model = body(spec, versions)
        assert patch(model, choose(model, "")) == {"targetVersion": "1"}


def test_an_inference_model_changes_its_target_and_needs_the_version_in_its_manifest() -> None:
    manifest = [{"version": "1", "downloadURL": "/a.onnx"}, {"version": "2", "downloadURL": "/b.onnx"}]
    versions = served(("2", "/b.onnx", B), ("1", "/a.onnx", A))
    model = body({"manifest": manifest, "targetVersion": "2"}, versions)
    assert patch(model, choose(model, "")) == {"targetVersion": "1"}
    gone = body({"manifest": manifest[1:], "targetVersion": "2"}, versions)
    with pytest.raises(HalimedeError, match=r"spec\.manifest"):
        patch(gone, choose(gone, ""))


def test_an_address_with_a_secret_is_kept_where_it_is_the_same_and_never_made_up() -> None:
    shown = served(("bbbb", "https://***@host/m.onnx", B), ("aaaa", "https://***@host/m.onnx", A))
    model = body({"url": "https://u:p@host/m.onnx", "sha256": B}, shown)
    assert patch(model, choose(model, "")) == {"url": "https://u:p@host/m.onnx", "sha256": A}
    moved = body({"url": "/b.onnx", "sha256": B}, shown)
    with pytest.raises(HalimedeError, match="secret"):
        patch(moved, choose(moved, "aaaa"))


def test_a_target_that_would_win_over_the_url_is_taken_out() -> None:
    model = body({"url": "/b.onnx", "versions": [{"version": "2", "url": "/b.onnx"}], "targetVersion": "2"}, TWO)
    assert patch(model, choose(model, "aaaa")) == {"url": "/a.onnx", "sha256": A, "targetVersion": ""}


def test_on_kubernetes_the_command_can_be_run_as_it_stands() -> None:
    model = body({"url": "/b.onnx", "sha256": B}, TWO)
    line = kubectl(model, Key("models", "default", "small"), {"url": "/a b.onnx"})
    assert shlex.split(line) == [
        "kubectl", "patch", "models.sedna.io", "small", "-n", "default", "--type", "merge", "-p",
        '{"spec": {"url": "/a b.onnx"}}',
    ]  # fmt: skip
