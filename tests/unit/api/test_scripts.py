"""Which scripts a Model or an InferenceModel may name: those that can come with it, and that are called."""

from __future__ import annotations

from typing import Any

import pytest

from halimede import api
from halimede.errors import InvalidFieldError
from tests.unit.api.samples import resource
from tests.unit.api.test_resources import fields_of as fields

STEP = {"op": "script", "file": "pre.py"}
SCRIPT = {"script": {"file": "lib/post.py"}}


def model(**spec: Any) -> dict[str, Any]:
    whole = {"url": "/models/small.tar.gz", "format": "onnx", "preprocess": [STEP], "postprocess": SCRIPT, **spec}
    return resource("Model", whole)


def served(**spec: Any) -> dict[str, Any]:
    manifest = [{"version": "1", "downloadURL": "https://models.example/small.zip"}]
    whole = {"modelName": "small", "deployToLayer": "edge", "frameworkType": "onnx", "manifest": manifest}
    return resource("InferenceModel", {**whole, "preprocess": [STEP], "postprocess": SCRIPT, **spec})


@pytest.mark.parametrize("body", [model(), served()], ids=["Model", "InferenceModel"])
def test_a_script_in_an_archive_is_accepted_and_has_a_function_of_the_fields_name(body: dict[str, Any]) -> None:
    spec = api.admit(body).spec
    assert (spec.preprocess[0].file, spec.preprocess[0].function) == ("pre.py", "preprocess")
    assert (spec.postprocess.script.file, spec.postprocess.script.function) == ("lib/post.py", "postprocess")


FILES = ["/m/small.onnx", "https://m.example/small.ONNX?token=1", "file:///m.onnx", "/m.tflite", "/m/saved_model.pb"]


@pytest.mark.parametrize("url", FILES)
def test_a_bare_model_file_has_no_scripts_with_it(url: str) -> None:
    assert fields(model(url=url)) == ["spec.url"]
    manifest = [{"version": "1", "downloadURL": "/a.zip"}, {"version": "2", "downloadURL": url}]
    assert fields(served(manifest=manifest)) == ["spec.manifest[1].downloadURL"]
    versions = [{"version": "1", "url": "/a.tgz"}, {"version": "2", "url": url}]
    assert fields(model(versions=versions)) == ["spec.versions[1].url"]
    api.admit(model(url=url, preprocess=[], postprocess={}))


@pytest.mark.parametrize("form", ["ONNX", "tflite", "tensorflow"])
def test_models_of_each_format_that_halimede_reads_may_have_scripts(form: str) -> None:
    assert api.admit(model(format=form)).spec.postprocess.script.file == "lib/post.py"
    assert api.admit(served(frameworkType=form)).spec.postprocess.script.file == "lib/post.py"


def test_other_formats_have_no_scripts_since_estimators_are_code_already() -> None:
    assert fields(model(format="pt")) == ["spec.preprocess[0]", "spec.postprocess.script"]
    assert fields(served(frameworkType="caffe")) == ["spec.preprocess[0]", "spec.postprocess.script"]
    with pytest.raises(InvalidFieldError, match="one of the formats onnx, tflite, tensorflow with a script"):
        api.admit(model(format="pt"))


@pytest.mark.parametrize(
    "declared",
    [{"activation": "softmax"}, {"output": "y"}, {"topK": 3}, {"task": "detection", "nms": {}}, {"features": "f"}],
)
def test_a_script_reads_the_outputs_alone(declared: dict[str, Any]) -> None:
    assert fields(model(postprocess={**SCRIPT, **declared})) == ["spec.postprocess.script"]
    assert fields(model(format="tflite", postprocess={**SCRIPT, **declared})) == ["spec.postprocess.script"]
    assert fields(served(frameworkType="tensorflow", postprocess={**SCRIPT, **declared})) == ["spec.postprocess.script"]


def test_a_task_names_what_the_script_finds_for_selectors() -> None:
    api.admit(model(postprocess={**SCRIPT, "task": "detection"}))


@pytest.mark.parametrize("file", ["../x.py", "/x.py", "a/../x.py", "a//x.py", ".x.py", "x", "x.py\n", "x.py/", "é.py"])
def test_a_script_is_a_python_file_of_the_archive(file: str) -> None:
    assert fields(model(preprocess=[{**STEP, "file": file}])) == ["spec.preprocess[0].file"]
    assert fields(model(postprocess={"script": {"file": file}})) == ["spec.postprocess.script.file"]
    assert fields(model(preprocess=[{**STEP, "function": "a.b"}])) == ["spec.preprocess[0].function"]
