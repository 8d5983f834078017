"""The samples of the documents, written anew, and a worker's report in their words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halimede.api.base import NEPTUNE, SEDNA

NAME = "helmet-detection-demo"
#: plurals
JOINT, SEVERAL, SERVED = "jointinferenceservices", "multiedgeinferenceservices", "inferencemodels"
HOSTNAME = "kubernetes.io/hostname"
#: two samples in the formats that a dataset may have
DATA = {
    "csv": "picture,label\n1.png,cat\n2.png,dog\n",
    "txt": "1.png 0\n2.png 1\n",
    "xml": "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>"
    "</bndbox></object></annotation>",
}
#: a Model with two versions, and what services select it by
FACES = {
    "versions": [{"version": each, "url": f"https://models.example/faces-{each}.onnx"} for each in ("3", "4")],
    "targetVersion": "3",
    "metadata": {"finds": "faces"},
    "labels": ["dog", "cat"],
    "metrics": [{"key": "accuracy", "value": "0.8"}, {"key": "recall", "value": "0.7"}],
}
#: how a service selects it
SELECTOR = {"metadata": {"finds": "faces"}, "labels": ["cat"]}


def write_data(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write two samples in each format; yield it and their folder."""
    for name, text in DATA.items():
        for file in ("1.xml", "2.xml") if name == "xml" else (f"all.{name}",):
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield name, path.parent


def model(name: str, **more: Any) -> dict[str, Any]:
    """Return a Model at an address that nodes and pods fetch it from."""
    spec = {"url": f"https://models.example/{name.removesuffix('-model')}.onnx", "format": "onnx", **more}
    return {"apiVersion": SEDNA, "kind": "Model", "metadata": {"name": name}, "spec": spec}


def service(
    name: str = NAME, edge: str = "edge0", cloud: str = "cloud0", models: tuple[str, str] = ("small-model", "big-model")
) -> dict[str, Any]:
    """Return the sample of seed 001, on these nodes."""

    def worker(name: str, model: str, node: str, script: str) -> dict[str, Any]:
        spec = {
            "scriptDir": "/code",
            "scriptBootFile": script,
            "frameworkType": "tensorflow",
            "frameworkVersion": "1.18",
            "parameters": [{"key": "nms_threshold", "value": "0.6"}],
        }
        return {"name": name, "model": {"name": model}, "nodeName": node, "workerSpec": spec}

    edge_worker = worker("edgeworker", models[0], edge, "edge_inference.py")
    return {
        "apiVersion": NEPTUNE,
        "kind": "JointInferenceService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "edgeWorker": edge_worker | {"hardExampleAlgorithm": {"name": "IBT"}},
            "cloudWorker": worker("work", models[1], cloud, "cloud_inference.py"),
        },
    }


def without_node(body: dict[str, Any]) -> dict[str, Any]:
    """Return a service whose edge worker names no node."""
    edge = {name: value for name, value in body["spec"]["edgeWorker"].items() if name != "nodeName"}
    return {**body, "spec": {**body["spec"], "edgeWorker": edge}}


def info(worker: str, name: str = NAME, plural: str = JOINT, **more: Any) -> dict[str, Any]:
    """Return a worker's report in the words of seed 001."""
    counts = {
        "inferenceNumber": 1000,
        "hardExampleNumber": 100,
        "uploadCloudRatio": 0.1,
        "startTime": "2020-11-03T08:39:22.517Z",
        "updateTime": "2020-11-03T08:50:22.517Z",
    }
    owner = {"ownerName": name, "ownerKind": plural[:-1]}
    body = {"name": worker, "namespace": "default", **owner, "kind": "inference", "status": "running"}
    return {**body, "taskInfo": counts, **more}
