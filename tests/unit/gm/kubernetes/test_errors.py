"""What users read of an answer of the API server: its words, with the field, and not the whole object again."""

from __future__ import annotations

import msgspec
import pytest

from services.gm.cluster.kubernetes import client


def refused(message: str) -> client.KubernetesApiError:
    return client.error_of("PATCH deployments shop/d", 422, msgspec.json.encode({"message": message}), {})


def test_a_patch_that_makes_no_object_is_refused_without_all_of_the_object() -> None:
    whole = r"{\"env\":[{\"name\":\"A\",\"value\":\"a \\\": b\"}],\"long\":\"" + "x" * 2 * client.MAX_MESSAGE + r"\"}\n"
    why = 'strict decoding error: unknown field "spec.template.spec.tolerationz"'
    error = refused(f' "" is invalid: patch: Invalid value: "{whole}": {why}')
    assert isinstance(error, client.RefusedObjectError)
    assert str(error) == f"PATCH deployments shop/d: {why} (422)"
    assert str(error.about("Deployment shop/d")) == f"Deployment shop/d: {why}"


@pytest.mark.parametrize(
    "message",
    [
        'Deployment.apps "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0',
        'Deployment.apps "d" is invalid: spec.patch: Invalid value: "{": no',
        ' "" is invalid: patch: Invalid value: "{}"',
    ],
)
def test_other_words_of_the_server_are_left_as_they_are(message: str) -> None:
    assert refused(message).message == message
