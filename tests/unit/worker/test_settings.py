"""The environment is read whole, and every mistake in it names its variable."""

from __future__ import annotations

import json
from pathlib import Path

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
CLOUD = {k: v for k, v in EDGE.items() if k not in {"HEM_NAME", "HEM_PARAMETERS", "SOURCE", "DEADLINE_MS"}}


def test_an_edge_workers_environment_is_read_whole() -> None:
    found = read("edge", EDGE)
    assert (found.namespace, found.service, found.worker, found.node) == (
        "default", "helmet", "helmet-edge-edge0", "edge0",
    )  # fmt: skip
    assert (found.uid, found.model_path, found.model.labels) == ("u-1", "/models/small.onnx", ["no", "yes"])
    assert (found.hem_name, found.hem_parameters) == ("Margin", {"threshold_margin": "0.2"})
    assert found.source.cameras == ["cam0", "cam1"]
    assert (found.deadline_s, found.period_s, found.grace_s) == (1.5, 0.5, 20.0)
    assert (found.broker, found.state) == ("mqtt://broker:1884", Path("/state"))


def test_a_detector_has_a_file_and_says_which_boxes_are_cropped() -> None:
    assert read("edge", EDGE).detector is None
    boxes = json.dumps({"name": "finder", "maxBoxes": 7, "margin": 0.1})
    found = read("edge", {**EDGE, "DETECTOR_URL": "/models/finder.onnx", "DETECTOR": boxes}).detector
    assert found is not None
    assert (found.path, found.model.format) == ("/models/finder.onnx", "onnx")
    assert (found.boxes.max_boxes, found.boxes.margin, found.boxes.min_score) == (7, 0.1, 0.25)
    with pytest.raises(InvalidFieldError, match="DETECTOR_URL"):
        read("edge", {**EDGE, "DETECTOR": boxes})
    with pytest.raises(InvalidFieldError, match=r"DETECTOR\.maxBoxes"):
        read("edge", {**EDGE, "DETECTOR_URL": "/f.onnx", "DETECTOR": '{"name": "finder", "maxBoxes": 1000}'})
    reader = json.dumps({"url": "/f.onnx", "format": "onnx", "postprocess": {"task": "text"}})
    with pytest.raises(InvalidFieldError, match=r"DETECTOR_SPEC\.postprocess\.task: 'text' .* must find boxes"):
        read("edge", {**EDGE, "DETECTOR_URL": "/f.onnx", "DETECTOR_SPEC": reader})


def test_credentials_are_named_by_a_folder_or_there_are_none() -> None:
    assert read("edge", EDGE).credentials == ""
    assert read("cloud", {**CLOUD, "HALIMEDE_CREDENTIALS": "/site/x"}).credentials == "/site/x"


def test_a_cloud_worker_needs_nothing_of_the_edges() -> None:
    assert read("cloud", CLOUD).role == "cloud"


def test_without_a_source_the_camera_is_named_like_the_service() -> None:
    assert read("edge", {**EDGE, "SOURCE": ""}).source.cameras == ["helmet"]
    assert read("edge", {**EDGE, "SOURCE": "{}"}).source.cameras == ["helmet"]


def test_how_uploads_are_written_is_told_or_they_go_as_they_came() -> None:
    told = read("edge", {**EDGE, "UPLOAD_ENCODING": "jpeg", "UPLOAD_MAX_BYTES": "60000"})
    assert (told.upload_encoding, told.upload_max_bytes) == ("jpeg", 60_000)
    untold = read("edge", EDGE)
    assert (untold.upload_encoding, untold.upload_max_bytes) == ("as-it-came", None)


def test_regions_are_uploaded_of_a_model_that_may_find_boxes() -> None:
    detector = {"url": "/models/small.onnx", "format": "onnx", "postprocess": {"task": "detection"}}
    for spec in ({"url": "/m.py", "format": "python"}, detector):
        assert read("edge", {**EDGE, "UPLOAD": "regions", "MODEL_SPEC": json.dumps(spec)}).upload == "regions"
    assert read("edge", EDGE).upload == "frame"


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"UPLOAD": "region"}, "frame, regions"),
        ({"UPLOAD": "regions", "MINING_MODE": "mining-then-inference", "HEM_NAME": "Sharpness"}, "inference-then"),
        (
            {
                "UPLOAD": "regions",
                "MODEL_SPEC": json.dumps({"url": "/m.onnx", "format": "onnx", "postprocess": {"task": "text"}}),
            },
            "the small model finds no boxes",
        ),
    ],
)
def test_regions_that_cannot_be_are_refused(variables: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidFieldError, match=text) as caught:
        read("edge", {**EDGE, **variables})
    assert caught.value.field == "UPLOAD"


def test_how_a_cloud_worker_batches_is_told_or_has_a_default() -> None:
    names = ("MAX_BATCH_SIZE", "MAX_QUEUE_DELAY_MS", "MODEL_SESSIONS", "MODEL_THREADS")
    told = read("cloud", {**CLOUD, **dict(zip(names, ("8", "2.5", "3", "2"), strict=True))})
    assert (told.batch, told.delay_s, told.sessions, told.threads) == (8, 0.0025, 3, 2)
    untold = read("cloud", CLOUD)
    assert (untold.batch, untold.delay_s, untold.threads) == (32, 0.0, 1)
    assert untold.sessions == cores()
    assert read("cloud", {**CLOUD, "MODEL_THREADS": "200"}).sessions == 1
    assert read("edge", EDGE).sessions == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_BATCH_SIZE", "0"),
        ("MAX_BATCH_SIZE", "many"),
        ("MAX_QUEUE_DELAY_MS", "-1"),
        ("MAX_QUEUE_DELAY_MS", "1001"),
        ("MODEL_SESSIONS", "0"),
        ("MODEL_THREADS", "nan"),
    ],
)
def test_a_mistake_of_a_cloud_worker_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read("cloud", {**CLOUD, name: value})
    assert caught.value.field == name


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NAMESPACE", "a/b"),
        ("SERVICE_NAME", "+"),
        ("SERVICE_NAME", ""),
        ("WORKER_NAME", "../.."),
        ("WORKER_NAME", ""),
        ("NODE_NAME", "#"),
        ("NODE_NAME", ""),
        ("SERVICE_UID", "x" * 65),
        ("MODEL_URL", ""),
        ("MODEL_SPEC", "{"),
        ("MODEL_SPEC", "[]"),
        ("MODEL_SPEC", '{"url": "/m", "format": "onnx", "labls": []}'),
        ("MODEL_SPEC", '{"url": "ftp://m", "format": "onnx"}'),
        ("HEM_NAME", ""),
        ("HEM_PARAMETERS", '{"threshold": 1}'),
        ("HEM_PARAMETERS", '[{"key": "threshold", "value": 0.5}]'),
        ("SOURCE", '{"camera": "cam0"}'),
        ("SOURCE", '{"cameras": ["a/b"]}'),
        ("SOURCE", '{"cameras": ["cam0"], "path": "/x"}'),
        ("SOURCE_LOOP", "perhaps"),
        ("DEADLINE_MS", "0"),
        ("DEADLINE_MS", "soon"),
        ("DEADLINE_MS", "nan"),
        ("LC_PERIOD", "0"),
        ("GRACE_S", "-1"),
        ("GRACE_S", "inf"),
        ("UPLOAD_ENCODING", "webp"),
        ("UPLOAD_MAX_BYTES", "1023"),
        ("UPLOAD_MAX_BYTES", "64Ki"),
    ],
)
def test_a_mistake_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read("edge", {**EDGE, name: value})
    assert caught.value.field.startswith(name)


def test_two_connections_of_any_two_workers_have_different_ids() -> None:
    ids = {
        read("edge", {**EDGE, "NAMESPACE": namespace, "WORKER_NAME": worker}).client_id(part)
        for namespace in ("intake", "worker", "a")
        for worker in ("a", "a.intake", "worker.a")
        for part in ("worker", "intake")
    }
    assert len(ids) == 18
