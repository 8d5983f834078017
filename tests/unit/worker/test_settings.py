"""The environment is read whole, and every mistake in it names its variable."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from halimede.errors import InvalidFieldError
from halimede.system.cpu import cores
from halimede.worker.settings import read

EDGE = {
    "NAMESPACE": "default",
    "SERVICE_NAME": "helmet",
    "SERVICE_UID": "u-1",
    "WORKER_NAME": "helmet-edge-edge0",
    "NODE_NAME": "edge0",
    "MODEL_URL": "/models/small.onnx",
    "MODEL_SPEC": json.dumps({"url": "/models/small.onnx", "format": "onnx", "labels": ["no", "yes"]}),
    "HEM_NAME": "Margin",
    "HEM_PARAMETERS": json.dumps([{"key": "threshold_margin", "value": "0.2"}]),
    "SOURCE": json.dumps({"cameras": ["cam0", "cam1"]}),
    "DEADLINE_MS": "1500",
    "HALIMEDE_BROKER": "mqtt://broker:1884",
    "HALIMEDE_STATE": "/state",
    "LC_PERIOD": "0.5",
    "GRACE_S": "20",
}
READER, FINDER = (
    json.dumps({"url": "/f.onnx", "format": "onnx", "postprocess": {"task": task}}) for task in ("text", "detection")
)
PYTHON = json.dumps({"url": "/m.py", "format": "python"})
CLOUD = {k: v for k, v in EDGE.items() if k not in {"HEM_NAME", "HEM_PARAMETERS", "SOURCE", "DEADLINE_MS"}}


def test_an_edge_workers_environment_is_read_whole() -> None:
    settings = read("edge", EDGE)
    assert (settings.namespace, settings.service, settings.uid) == ("default", "helmet", "u-1")
    assert (settings.worker, settings.node) == ("helmet-edge-edge0", "edge0")
    assert (settings.model_path, settings.model.labels) == ("/models/small.onnx", ["no", "yes"])
    assert (settings.hem_name, settings.hem_parameters) == ("Margin", {"threshold_margin": "0.2"})
    assert settings.source.cameras == ["cam0", "cam1"]
    assert (settings.deadline_s, settings.period_s, settings.grace_s) == (1.5, 0.5, 20.0)
    assert (settings.broker, settings.state) == ("mqtt://broker:1884", Path("/state"))


READ: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "an edge's defaults": ("edge", {}, {"credentials": "", "upload": "frame", "detector": None, "sessions": 1}),
    "uploads as they came": ("edge", {}, {"upload_encoding": "as-it-came", "upload_max_bytes": None}),
    "uploads as jpeg": ("edge", {"UPLOAD_ENCODING": "jpeg"}, {"upload_encoding": "jpeg"}),
    "small uploads": ("edge", {"UPLOAD_MAX_BYTES": "60000"}, {"upload_max_bytes": 60_000}),
    "regions of one's own model": ("edge", {"UPLOAD": "regions", "MODEL_SPEC": PYTHON}, {"upload": "regions"}),
    "regions of a detector": ("edge", {"UPLOAD": "regions", "MODEL_SPEC": FINDER}, {"upload": "regions"}),
    "a cloud's defaults": ("cloud", {}, {"role": "cloud", "batch": 32, "delay_s": 0.0, "threads": 1}),
    "batches": ("cloud", {"MAX_BATCH_SIZE": "8", "MAX_QUEUE_DELAY_MS": "2.5"}, {"batch": 8, "delay_s": 0.0025}),
    "a session for each core": ("cloud", {}, {"sessions": cores()}),
    "one session of many threads": ("cloud", {"MODEL_THREADS": "200"}, {"threads": 200, "sessions": 1}),
    "sessions": ("cloud", {"MODEL_SESSIONS": "3", "MODEL_THREADS": "2"}, {"sessions": 3, "threads": 2}),
    "credentials": ("cloud", {"HALIMEDE_CREDENTIALS": "/site/x"}, {"credentials": "/site/x"}),
}


@pytest.mark.parametrize(("role", "variables", "fields"), READ.values(), ids=READ)
def test_what_is_set_is_read_and_what_is_not_has_a_default(role: Any, variables: Any, fields: dict[str, Any]) -> None:
    settings = read(role, {**(EDGE if role == "edge" else CLOUD), **variables})
    assert {name: getattr(settings, name) for name in fields} == fields


def test_a_detector_has_a_file_and_says_which_boxes_are_cropped() -> None:
    boxes = json.dumps({"name": "finder", "maxBoxes": 7, "margin": 0.1})
    found = read("edge", {**EDGE, "DETECTOR_URL": "/models/finder.onnx", "DETECTOR": boxes}).detector
    assert (found.path, found.model.format) == ("/models/finder.onnx", "onnx")
    assert (found.boxes.max_boxes, found.boxes.margin, found.boxes.min_score) == (7, 0.1, 0.25)
    with pytest.raises(InvalidFieldError, match="DETECTOR_URL"):
        read("edge", {**EDGE, "DETECTOR": boxes})
    with pytest.raises(InvalidFieldError, match=r"DETECTOR\.maxBoxes"):
        read("edge", {**EDGE, "DETECTOR_URL": "/f.onnx", "DETECTOR": '{"name": "finder", "maxBoxes": 1000}'})
    with pytest.raises(InvalidFieldError, match=r"DETECTOR_SPEC\.postprocess\.task: 'text' .* must find boxes"):
        read("edge", {**EDGE, "DETECTOR_URL": "/f.onnx", "DETECTOR_SPEC": READER})


def test_without_a_source_the_camera_is_named_like_the_service() -> None:
    for source in ("", "{}"):
        assert read("edge", {**EDGE, "SOURCE": source}).source.cameras == ["helmet"]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"UPLOAD": "region"}, "frame, regions"),
        ({"UPLOAD": "regions", "MINING_MODE": "mining-then-inference", "HEM_NAME": "Sharpness"}, "inference-then"),
        ({"UPLOAD": "regions", "MODEL_SPEC": READER}, "the small model finds no boxes"),
    ],
)
def test_regions_that_cannot_be_are_refused(variables: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidFieldError, match=text) as caught:
        read("edge", {**EDGE, **variables})
    assert caught.value.field == "UPLOAD"


def test_what_is_not_told_has_a_default() -> None:
    least = {k: EDGE[k] for k in ("SERVICE_NAME", "WORKER_NAME", "NODE_NAME", "MODEL_URL", "HEM_NAME")}
    found = read("edge", {**least, "HALIMEDE_HOME": "/home"})
    assert (found.namespace, found.broker, found.deadline_s, found.grace_s) == ("default", "127.0.0.1:1883", 2.0, 10.0)
    assert found.state == Path("/home/nodes/edge0/workers/default/helmet-edge-edge0")
    assert found.model.url == "/models/small.onnx"


def test_an_own_estimator_needs_no_model_file() -> None:
    without = {k: v for k, v in CLOUD.items() if k not in {"MODEL_URL", "MODEL_SPEC"}}
    assert read("cloud", without, own_estimator=True).model_path == ""
    assert read("cloud", {**without, "ESTIMATOR": "m:C"}).estimator == "m:C"
    with pytest.raises(InvalidFieldError, match="MODEL_URL"):
        read("cloud", without)


MISTAKES = {
    "NAMESPACE": ["a/b"],
    "SERVICE_NAME": ["+", ""],
    "WORKER_NAME": ["../..", ""],
    "NODE_NAME": ["#", ""],
    "SERVICE_UID": ["x" * 65],
    "MODEL_URL": [""],
    "MODEL_SPEC": ["{", "[]", '{"url": "/m", "format": "onnx", "labls": []}', '{"url": "ftp://m", "format": "onnx"}'],
    "HEM_NAME": [""],
    "HEM_PARAMETERS": ['{"threshold": 1}', '[{"key": "threshold", "value": 0.5}]'],
    "SOURCE": ['{"camera": "cam0"}', '{"cameras": ["a/b"]}', '{"cameras": ["cam0"], "path": "/x"}'],
    "SOURCE_LOOP": ["perhaps"],
    "DEADLINE_MS": ["0", "soon", "nan"],
    "LC_PERIOD": ["0"],
    "GRACE_S": ["-1", "inf"],
    "UPLOAD_ENCODING": ["webp"],
    "UPLOAD_MAX_BYTES": ["1023", "64Ki"],
    "MAX_BATCH_SIZE": ["0", "many"],
    "MAX_QUEUE_DELAY_MS": ["-1", "1001"],
    "MODEL_SESSIONS": ["0"],
    "MODEL_THREADS": ["nan"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in MISTAKES.items() for value in values])
def test_a_mistake_names_its_variable(name: str, value: str) -> None:
    of_cloud = name.startswith(("MAX_", "MODEL_SESSIONS", "MODEL_THREADS"))
    with pytest.raises(InvalidFieldError) as caught:
        read("cloud" if of_cloud else "edge", {**(CLOUD if of_cloud else EDGE), name: value})
    assert re.split(r"[.[]", caught.value.field)[0] == name


@pytest.mark.parametrize("source", ["", '{"cameras": ["cam0"]}'], ids=["camera of the service's name", "cameras"])
def test_a_zone_of_a_camera_that_the_worker_does_not_have_is_refused(source: str) -> None:
    zone = {"name": "door", "camera": "gate", "polygon": [[0, 0], [1, 0], [1, 1]]}
    with pytest.raises(InvalidFieldError) as caught:
        read("edge", {**EDGE, "SOURCE": source, "OCCUPANCY": json.dumps({"zones": [zone]})})
    assert (caught.value.field, caught.value.value) == ("OCCUPANCY.zones[0].camera", "'gate'")
    own = {**zone, "camera": "helmet" if not source else "cam0"}
    assert read("edge", {**EDGE, "SOURCE": source, "OCCUPANCY": json.dumps({"zones": [own]})}).occupancy


def test_two_connections_of_any_two_workers_have_different_ids() -> None:
    ids = {
        read("edge", {**EDGE, "NAMESPACE": namespace, "WORKER_NAME": worker}).client_id(part)
        for namespace in ("intake", "worker", "a")
        for worker in ("a", "a.intake", "worker.a")
        for part in ("worker", "intake")
    }
    assert len(ids) == 18
