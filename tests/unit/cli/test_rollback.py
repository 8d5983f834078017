"""Which version a rollback goes back to, and what it changes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from halimede.cli.commands.rollback import choose, kubectl, patch
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.names import Key
from tests.unit.api.samples import resource

A, B, C = "a" * 64, "b" * 64, "c" * 64


def served(*versions: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"version": version, "url": url, "digest": digest} for version, url, digest in versions]


def body(spec: dict[str, Any], versions: list[dict[str, str]], **status: Any) -> dict[str, Any]:
    model = resource("Model", {"format": "onnx", **spec})
    model["metadata"] |= {"namespace": "default", "generation": 3}
    return {**model, "status": {"observedGeneration": 3, "versions": versions, **status}}


TWO = served(("bbbb", "/b.onnx", B), ("aaaa", "/a.onnx", A))
NUMBERED = served(("2", "/b.onnx", B), ("1", "/a.onnx", A))
HIDDEN = served(("bbbb", "https://***@host/m.onnx", B), ("aaaa", "https://***@host/m.onnx", A))
SECRET = "https://u:p@host/m.onnx"
LISTED = [{"version": "1", "url": "/a.onnx"}, {"version": "2", "url": "/b.onnx"}]
MANIFEST = [{"version": "1", "downloadURL": "/a.onnx"}, {"version": "2", "downloadURL": "/b.onnx"}]


@pytest.mark.parametrize(
    ("spec", "versions", "to", "changed"),
    [
        ({"url": "/b.onnx", "sha256": B}, TWO, "", {"url": "/a.onnx", "sha256": A}),
        ({"versions": LISTED, "targetVersion": "2"}, NUMBERED, "", {"targetVersion": "1"}),
        ({"versions": LISTED}, NUMBERED, "", {"targetVersion": "1"}),
        ({"manifest": MANIFEST, "targetVersion": "2"}, NUMBERED, "", {"targetVersion": "1"}),
        ({"url": SECRET, "sha256": B}, HIDDEN, "", {"url": SECRET, "sha256": A}),
        ({"url": "/b.onnx", "versions": LISTED[1:], "targetVersion": "2"}, TWO, "aaaa",
         {"url": "/a.onnx", "sha256": A, "targetVersion": ""}),
    ],
    ids=["the version before", "the listed one before", "the same without a target", "of an inference model",
         "a secret that is the same", "a target that would win over the url is taken out"],
)  # fmt: skip
def test_a_model_goes_back_by_the_field_that_chose_its_version(
    spec: dict[str, Any], versions: list[dict[str, str]], to: str, changed: dict[str, str]
) -> None:
    model = body(spec, versions)
    assert patch(model, choose(model, to)) == changed


def test_a_model_without_a_checksum_is_known_by_what_nodes_verified() -> None:
    model = body({"url": "/same.onnx"}, TWO, model={"digest": B})
    assert choose(model, "").version == "aaaa"
    older = {**model, "status": {**model["status"], "observedGeneration": 2}}
    assert choose({**older, "spec": {"url": "/b.onnx", "format": "onnx"}}, "").version == "aaaa"


@pytest.mark.parametrize(
    ("to", "digest"),
    [("", B), ("aaaa", A), ("aaaaaaaaaaaa", A)],
    ids=["the latest that served", "by its name", "by the beginning of its digest"],
)
def test_one_that_never_served_goes_back_to_a_version_that_did(to: str, digest: str) -> None:
    assert choose(body({"url": "/c.onnx", "sha256": C}, TWO), to).digest == digest


@pytest.mark.parametrize("to", ["aa", "9", "dddd"])
def test_a_version_that_nobody_knows_is_named_with_those_that_there_are(to: str) -> None:
    with pytest.raises(InvalidFieldError, match="bbbb, aaaa"):
        choose(body({"url": "/c.onnx"}, TWO), to)


def test_with_nothing_to_go_back_to_it_says_so() -> None:
    with pytest.raises(HalimedeError, match="served: aaaa"):
        choose(body({"url": "/a.onnx", "sha256": A}, served(("aaaa", "/a.onnx", A))), "")


@pytest.mark.parametrize(
    ("spec", "versions", "to", "cause"),
    [
        ({"manifest": MANIFEST[1:], "targetVersion": "2"}, NUMBERED, "", r"spec\.manifest"),
        ({"url": "/b.onnx", "sha256": B}, HIDDEN, "aaaa", "secret"),
    ],
    ids=["a version that has left the manifest", "an address whose secret nobody knows"],
)
def test_what_cannot_be_written_into_the_model_is_refused(
    spec: dict[str, Any], versions: list[dict[str, str]], to: str, cause: str
) -> None:
    model = body(spec, versions)
    with pytest.raises(HalimedeError, match=cause):
        patch(model, choose(model, to))


def test_on_kubernetes_the_command_can_be_run_as_it_stands() -> None:
    model = body({"url": "/b.onnx", "sha256": B}, TWO)
    line = kubectl(model, Key("models", "default", "small"), {"url": "/a b.onnx"})
    assert shlex.split(line) == [
        "kubectl", "patch", "models.sedna.io", "small", "-n", "default", "--type", "merge", "-p",
        '{"spec": {"url": "/a b.onnx"}}',
    ]  # fmt: skip
