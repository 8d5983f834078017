"""Attack 17: an ONNX file that takes its weights from files that are not its own. Refused before any is opened.

Wherever the tensor is in the file: among the weights, in an attribute, a branch, a function, a sparse tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from halimede.api.model import ModelSpec
from halimede.inference import ModelError, UnsafeModelError, open_model
from halimede.models.model_trial import try_model
from tests.hostile_models import adding, in_attribute, in_function, in_sparse, in_subgraph, outside

SPEC = ModelSpec(url="/m.onnx", format="onnx")
PLACES = [adding, in_attribute, in_subgraph, in_function, in_sparse]
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
OUTSIDE = [
    "../secret.bin", "sub/../../secret.bin", "..", "", ".", "/etc/passwd", "//etc/passwd", "a\\..\\secret.bin",
    "*/_ORT_MEM_ADDR_/*", "../model/w.bin",
]  # fmt: skip
#: what a tensor says of its file, and the refusal; an address in memory is no file, even if there is one of that name
SAID: list[tuple[str, dict[str, str], str]] = [
    *((location, {}, "not in its folder") for location in OUTSIDE),
    ("*/_ORT_MEM_ADDR_/*", {"offset": "4096", "length": "16"}, "not in its folder"),
    *((location, {}, "is a link") for location in ("link.bin", "inside.bin", "up/secret.bin")),
    *((location, {}, "not a regular file") for location in ("pipe", "sub")),
    ("w.bin", {"offset": "8", "length": "16"}, "bytes 8 to 24.*which has 16"),
    ("w.bin", {"length": "17"}, "which has 16"),
    ("w.bin", {"offset": "-8", "length": "16"}, "bytes -8 to 8"),
    ("w.bin", {"offset": str(2**63), "length": "16"}, "which has 16"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the model's folder, beside a file that is none of its business."""
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "w.bin").write_bytes(WEIGHTS.tobytes())
    return folder


def put_in_the_way(folder: Path) -> None:
    """Make links, a pipe, and a file that is called as an address in memory."""
    for name, target in {"link.bin": "../secret.bin", "inside.bin": "w.bin", "up": ".."}.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(4096))


def refused(path: Path, says: str) -> None:
    with pytest.raises(UnsafeModelError, match=says):
        open_model(path, SPEC)


async def test_attack_17_weights_in_the_models_own_folder_are_read(folder: Path) -> None:
    (folder / "sub" / "v.bin").write_bytes(bytes(8) + WEIGHTS.tobytes())
    for tensor in (outside("w.bin"), outside("./w.bin"), outside("sub/v.bin", offset="8", length="16")):
        path = adding(folder / "m.onnx", tensor)
        (answer,) = open_model(path, SPEC).predict([np.zeros(4, np.float32)])
        assert answer.probabilities == pytest.approx(WEIGHTS.tolist())
    trial = await try_model(path, "{}")
    assert (trial.ok, trial.memory_bytes > 0, trial.seconds > 0) == (True, True, True)


@pytest.mark.parametrize("put", PLACES)
def test_attack_17_a_file_outside_is_refused_wherever_the_tensor_is(
    folder: Path, put: Callable[[Path, onnx.TensorProto], Path]
) -> None:
    refused(put(folder / "m.onnx", outside("../secret.bin")), "not in its folder")


@pytest.mark.parametrize(("location", "said", "says"), SAID)
def test_attack_17_no_byte_of_a_link_a_pipe_or_beyond_the_folder_or_the_file_is_read(
    folder: Path, location: str, said: dict[str, str], says: str
) -> None:
    put_in_the_way(folder)
    refused(adding(folder / "m.onnx", outside(location, **said)), says)


def test_attack_17_a_tensor_that_names_two_files_is_refused(folder: Path) -> None:
    tensor = outside("w.bin")
    tensor.external_data.add(key="location", value="../secret.bin")
    refused(adding(folder / "m.onnx", tensor), "does not give a valid location")


def test_attack_17_a_missing_file_is_said_to_be_missing(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"v\.bin cannot be read: deliver it"):
        open_model(adding(folder / "m.onnx", outside("v.bin")), SPEC)


def test_attack_17_a_model_that_is_a_link_itself_has_its_weights_where_it_really_is(folder: Path) -> None:
    path = adding(folder / "m.onnx", outside("w.bin"))
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w.bin").write_bytes(np.full(4, 0.25, np.float32).tobytes())
    (elsewhere / "m.onnx").symlink_to(path)
    (answer,) = open_model(elsewhere / "m.onnx", SPEC).predict([np.zeros(4, np.float32)])
    assert answer.probabilities == pytest.approx(WEIGHTS.tolist())
