"""Attack 18: files that run code when they are read, and models that want a library. Refused unread, with a way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from halimede.api.model import ModelSpec
from halimede.inference import ModelError, UnsafeModelError, open_model
from halimede.models.model_trial import TrialReason, try_model
from tests.hostile_models import harmless, in_function, save, strangers, zipped

SPEC = ModelSpec(url="/m.onnx", format="onnx")
KINDS = sorted(strangers(Path("/nowhere")))
OTHERS = {
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "tf2onnx"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(64), "tf2onnx"),
    "safetensors": (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"w":{}}'.ljust(64), "weights without a model"),
    "gguf": (b"GGUF" + bytes(64), "export it to ONNX"),
    "ort": (b"\x00\x00\x00\x00ORTM" + bytes(64), "give the ONNX file"),
    "gzip": (b"\x1f\x8b\x08" + bytes(64), "give an archive"),
    "zip": (zipped({"model.onnx": b"\x08\x08"}), "give the ONNX file in it"),
    "cut zip": (b"PK\x03\x04" + bytes(64), "damaged zip"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "not a model"),
    "html": (b"<html>not found</html>", "not an ONNX model"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_attack_18_code_in_a_file_never_runs(kind: str, tmp_path: Path) -> None:
    trap, path = tmp_path / "trap", tmp_path / "m.onnx"
    path.write_bytes(strangers(trap)[kind])
    with pytest.raises(UnsafeModelError, match="export it to ONNX"):
        open_model(path, SPEC)
    assert (await try_model(path, "{}")).reason == TrialReason.UNSAFE
    assert not trap.exists()


@pytest.mark.parametrize("kind", OTHERS)
def test_attack_18_other_formats_are_told_from_onnx_with_advice(kind: str, tmp_path: Path) -> None:
    content, advice = OTHERS[kind]
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=advice) as caught:
        open_model(tmp_path / "m.onnx", SPEC)
    assert not isinstance(caught.value, UnsafeModelError)
    assert "\n" not in str(caught.value)


async def test_attack_18_operators_of_a_library_are_refused_and_no_library_is_loaded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Run", ["x"], ["y"], domain="evil.example", library="/tmp/evil.so")]
    path = save(tmp_path / "m.onnx", nodes)
    with pytest.raises(UnsafeModelError, match=r"operator 'Run' of 'evil\.example', which comes in a library"):
        open_model(path, SPEC)
    assert (await try_model(path, "{}")).reason == TrialReason.UNSAFE


def test_attack_18_a_models_own_functions_are_no_library(tmp_path: Path) -> None:
    open_model(in_function(tmp_path / "m.onnx", numpy_helper.from_array(np.zeros(4, np.float32), "w")), SPEC).close()


def test_attack_18_a_name_makes_no_other_format_of_it(tmp_path: Path) -> None:
    open_model(harmless(tmp_path / "m.ort"), SPEC).close()  # ONNX Runtime would read it by other rules
