"""What a multi-edge service may not ask of a worker is a mistake of its user's, named before anything starts."""

from __future__ import annotations

import pytest

from halimede.errors import InvalidFieldError
from halimede.multiedge import Parameters, create
from halimede.multiedge.roles import joint
from halimede.multiedge.settings import read_member


def test_a_cloud_worker_of_an_application_that_brings_nothing_together_is_refused() -> None:
    settings = read_member("joint", {
        "APPLICATION": '{"name": "balance"}', "SERVICE_NAME": "belt", "WORKER_NAME": "belt.joint.cloud0",
        "NODE_NAME": "cloud0", "PART": "joint", "JOINT": "cloud", "SERVICE_UID": "u",
    })  # fmt: skip
    with pytest.raises(InvalidFieldError, match="remove it") as caught:
        joint(settings)
    assert caught.value.field == "spec.cloudWorker"


def test_a_function_that_makes_no_application_is_named_and_what_it_said() -> None:
    with pytest.raises(InvalidFieldError, match=r"its function failed: TypeError: .*getcwd") as caught:
        create("mine", "os:getcwd", Parameters({}))
    assert (caught.value.field, caught.value.value) == ("spec.application.entry", "'os:getcwd'")
