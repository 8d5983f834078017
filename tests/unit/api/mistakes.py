"""Mistakes in resources: what is written where, and which field is to blame."""

from __future__ import annotations

import re
from typing import Any

from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put, sedna_service

MODEL, DATASET = SAMPLES["a model with steps"], SAMPLES["a dataset of Sedna's"]
SERVICE, PROPOSAL = SAMPLES["a service of Sedna's"], SAMPLES["the proposal's"]
VERSIONED = SAMPLES["a model with versions"]
SERVED = SAMPLES["the model operator's"]
SEVERAL = SAMPLES["several edges"]
NORTH = SEVERAL["spec"]["edgeWorkers"][0]
TIERS = SAMPLES["several tiers"]
GATE = TIERS["spec"]["tiers"][0]
PRICED = put(TIERS, "spec.tiers.1.costs", {"miss": 1, "upload": 1})
FREE = {key: value for key, value in GATE.items() if key != "targetUploadRatio"}
TRAINING = SAMPLES["a training"]
FEDERATED, INCREMENTAL = SAMPLES["a federated job of Sedna's"], SAMPLES["an incremental job of Sedna's"]
TRAINER, OTHER = TRAINING["spec"]["trainers"]
DETECTING = put(SERVICE, "spec.edgeWorker.detector", {"name": "finder"})
SOURCED = put(SERVICE, "spec.edgeWorker.source", {"cameras": ["cam0"]})
SCRIPTED = put(
    put(MODEL, "spec.preprocess", [{"op": "script", "file": "lib/pre.py"}]),
    "spec.postprocess",
    {"script": {"file": "post.py", "function": "read"}},
)
ZONE = TIERS["spec"]["edgeWorker"]["occupancy"]["zones"][0]
SHARPNESS = {"name": "Sharpness", "parameters": [{"key": "threshold", "value": "9"}], "mode": "mining-then-inference"}
POD = "spec.edgeWorker.template.spec"
EDGE = SERVICE["spec"]["edgeWorker"] | {"upload": "regions"}

#: body, path of a field and its wrong value (None: taken away), which a schema alone sees
MISTAKES: list[tuple[dict[str, Any], str, object]] = [
    (SERVICE, "metadata.name", "a" * 47),
    (SERVICE, "metadata.name", "helmet.site"),
    (PROPOSAL, "metadata.name", "1st"),
    (SERVICE, "spec", None),
    (SERVICE, "spec.cloudWorker", None),
    (SERVICE, "spec.edgeWorker.model.name", "a/b"),
    (SERVICE, "spec.edgeWorker.hardExampleMining", None),
    (SERVICE, "spec.edgeWorker.hardExampleMining.parameters.0.value", 0.9),
    (SERVICE, "spec.edgeWorker.deadlineMs", 0),
    (SERVICE, "spec.edgeWorker.deadlineMs", "1s"),
    (DETECTING, "spec.edgeWorker.detector.name", "a/b"),
    (DETECTING, "spec.edgeWorker.detector.maxBoxes", 257),
    (DETECTING, "spec.edgeWorker.detector.minScore", 1.1),
    (DETECTING, "spec.edgeWorker.detector.margin", -0.1),
    (SOURCED, "spec.edgeWorker.source.cameras.0", "a/#"),
    (SOURCED, "spec.edgeWorker.source.cameras", ["c"] * 65),
    (SOURCED, "spec.edgeWorker.source.maxAgeMs", 0),
    (SOURCED, "spec.edgeWorker.source.maxAgeMs", 0.5),
    (SOURCED, "spec.edgeWorker.source.maxAgeMs", 3_600_001),
    (SERVICE, f"{POD}.nodeName", "../x"),
    (SERVICE, f"{POD}.nodeSelector", ["a"]),
    (SERVICE, f"{POD}.containers", []),
    (SERVICE, f"{POD}.containers.0.env.0.name", "A=B"),
    (SERVICE, f"{POD}.containers.0.env.0.value", 1),
    (SERVICE, f"{POD}.volumes.0.hostPath", "/data"),
    (SERVICE, "spec.edgeWorker.hpa.maxReplicas", None),
    (SERVICE, "spec.cloudWorker.hpa.minReplicas", 0),
    (SERVICE, "spec.dataset", "helmets"),
    (PROPOSAL, "spec.edgeWorker.nodeName", "Edge_0"),
    (PROPOSAL, "spec.edgeWorker.workerSpec.frameworkVersion", 1.18),
    (PROPOSAL, "spec.cloudWorker.workerSpec.scriptDir", ""),
    (MODEL, "spec.sha256", "abc"),
    (MODEL, "spec.preprocess.1.op", "rotate"),
    (MODEL, "spec.preprocess.1.width", 8193),
    (MODEL, "spec.postprocess.task", "segmentation"),
    (SCRIPTED, "spec.preprocess.0.file", "../pre.py"),
    (SCRIPTED, "spec.preprocess.0.file", "/etc/pre.py"),
    (SCRIPTED, "spec.preprocess.0.file", ".pre.py"),
    (SCRIPTED, "spec.preprocess.0.file", "pre.sh"),
    (SCRIPTED, "spec.preprocess.0.function", "os.system"),
    (SCRIPTED, "spec.postprocess.script.file", "lib//post.py"),
    (SCRIPTED, "spec.postprocess.script.file", None),
    (SCRIPTED, "spec.postprocess.script.function", ""),
    (MODEL, "spec.postprocess.topK", -1),
    (VERSIONED, "spec.versions.1.url", None),
    (VERSIONED, "spec.metrics.0.value", 0.9),
    (VERSIONED, "spec.rollout.canaryPercent", 101),
    (SERVED, "spec.deployToLayer", "fog"),
    (SERVED, "spec.modelName", ""),
    (SERVED, "spec.servingPort", -1),
    (SERVED, "spec.replicas", -1),
    (SERVED, "spec.serviceType", "ExternalName"),
    (SERVED, "metadata.name", "a" * 47),
    (SEVERAL, "metadata.name", "a" * 41),
    (SEVERAL, "spec.application", None),
    (SEVERAL, "spec.application.entry", "no colon"),
    (SEVERAL, "spec.edgeWorkers", []),
    (SEVERAL, "spec.edgeWorkers.0.name", "North"),
    (SEVERAL, "spec.edgeWorkers.1.deadlineMs", 0),
    (SEVERAL, "spec.edgeWorkers.0.detector.name", "a/b"),
    (SEVERAL, "spec.cloudWorker.template", None),
    (TIERS, "spec.edgeWorker.targetUploadRatio", 1.5),
    (TIERS, "spec.edgeWorker.committee", [{"name": name} for name in "abc"]),
    (TIERS, "spec.edgeWorker.hardExampleMining.mode", "before"),
    (TIERS, "spec.edgeWorker.keepHardSamples.maxSamples", 0),
    (TIERS, "spec.edgeWorker.occupancy.minFrames", 0),
    (TIERS, "spec.edgeWorker.occupancy.holdS", -1),
    (TIERS, "spec.edgeWorker.occupancy.zones.0.name", "Door 1"),
    (TIERS, "spec.edgeWorker.occupancy.zones.0.polygon", [[0, 0], [1, 1]]),
    (TIERS, "spec.edgeWorker.occupancy.zones.0.polygon.0.1", 100),
    (TIERS, "spec.tiers", [GATE] * 9),
    (TIERS, "spec.tiers.0.name", "Gate"),
    (TIERS, "spec.tiers.0.name", "a.b"),
    (TIERS, "spec.tiers.0.model", None),
    (TIERS, "spec.tiers.1.hardExampleMining", None),
    (TIERS, "spec.tiers.0.calibration.name", "a/b"),
    (TIERS, "spec.tiers.0.targetUploadRatio", -0.1),
    (TIERS, "spec.tiers.0.auditShare", 2),
    (TIERS, "spec.tiers.0.fusion", "both"),
    (PRICED, "spec.tiers.1.costs.miss", -1),
    (PRICED, "spec.tiers.1.costs.falseAlarm", "1"),
    (PRICED, "spec.tiers.1.costs.upload", None),
    (PRICED, "spec.tiers.1.costs.upload", 1e10),
    (TIERS, "spec.edgeWorker.encoding", "webp"),
    (SERVICE, "spec.edgeWorker.upload", "region"),
    (TIERS, "spec.tiers.0.maxBytes", 1023),
    (TIERS, "spec.tiers.1.maxBatchSize", 0),
    (TIERS, "spec.tiers.1.maxQueueDelayMs", -1),
    (TIERS, "spec.cloudWorker.maxBatchSize", "many"),
    (TIERS, "spec.cloudWorker.maxQueueDelayMs", 1001),
    (TIERS, "spec.tiers.1.maxBytes", "64Ki"),
    (TIERS, "spec.tiers.1.template.spec.nodeName", "Node_0"),
    (DATASET, "spec.nodeName", "a b"),
    (MODEL, "spec.nodeName", "a b"),
    (DATASET, "spec.format", None),
    (FEDERATED, "spec.aggregationWorker.model", None),
    (FEDERATED, "spec.trainingWorkers", []),
    (FEDERATED, "spec.trainingWorkers.0.dataset", None),
    (FEDERATED, "spec.trainingWorkers.1.template", None),
    (FEDERATED, "spec.transmitter.ws", "yes"),
    (INCREMENTAL, "spec.dataset.trainProb", 2),
    (INCREMENTAL, "spec.initialModel", None),
    (INCREMENTAL, "spec.trainSpec.trigger.condition.operator", "over"),
    (INCREMENTAL, "spec.trainSpec.trigger.timer.start", "25:00"),
    (INCREMENTAL, "spec.deploySpec.model.pollPeriodSeconds", 0),
    (TRAINING, "metadata.name", "a" * 41),
    (TRAINING, "spec.model", None),
    (TRAINING, "spec.trainers", []),
    (TRAINING, "spec.trainers.0.name", "Edge"),
    (TRAINING, "spec.trainers.0.dataset.name", "a/b"),
    (TRAINING, "spec.trainers.1.hardSamples.service", ""),
    (TRAINING, "spec.trainer.entry", "no colon"),
    (TRAINING, "spec.trainer.archive", "digits"),
    (TRAINING, "spec.trainer.parameters.0.value", 0.1),
    (TRAINING, "spec.aggregator.template", None),
    (TRAINING, "spec.compression.dtype", "float8"),
    (TRAINING, "spec.compression.topK", -1),
    (TRAINING, "spec.rounds", 0),
    (TRAINING, "spec.minClients", 0),
    (TRAINING, "spec.clientsPerRound", -1),
    (TRAINING, "spec.roundDeadlineS", -1),
    (TRAINING, "spec.target.value", "high"),
    (TRAINING, "spec.target.metric", ""),
    (TRAINING, "spec.limits.memoryMb", 1),
    (TRAINING, "spec.limits.hours.begin", 25),
    (TRAINING, "spec.seed", -1),
]

#: the same with a rule that is broken, and where below the path it is
BROKEN_RULES: list[tuple[dict[str, Any], str, object, str]] = [
    (sedna_service(), "spec.edgeWorker.source", {}, ""),
    (sedna_service(), "spec.edgeWorker.source", {"path": "/x", "url": "rtsp://x"}, ""),
    (sedna_service(), "spec.edgeWorker.source", {"path": "x"}, ".path"),
    (sedna_service(), "spec.edgeWorker.source", {"path": "/x", "maxAgeMs": 100}, ".maxAgeMs"),
    (sedna_service(), "spec.cloudWorker.hpa", {"minReplicas": 3, "maxReplicas": 2}, ".minReplicas"),
    (PROPOSAL, "spec.edgeWorker.workerSpec.scriptDir", "/code/..", ""),
    (PROPOSAL, "spec.edgeWorker.workerSpec.scriptDir", "/code/../etc", ""),
    (PROPOSAL, "spec.edgeWorker.workerSpec.scriptDir", "code", ""),
    (PROPOSAL, "spec.cloudWorker.workerSpec.scriptBootFile", "../x.py", ""),
    *((MODEL, "spec.url", url, "") for url in ("ftp://x/y", "gopher://x/y", "models/a.onnx", "javascript:1")),
    (MODEL, "spec.url", "", ""),
    (MODEL, "spec.targetVersion", "3", ""),
    (MODEL, "spec.versions", [{"version": "1", "url": "/a"}, {"version": "1", "url": "/b"}], ""),
    (MODEL, "spec.versions", [{"version": "1", "url": "a"}], "[0].url"),
    (SERVICE, "spec.edgeWorker.model", {}, ""),
    (SERVICE, "spec.edgeWorker.model", {"name": "a", "selector": {"task": "detection"}}, ""),
    (SERVICE, "spec.cloudWorker.model", {"selector": {"metric": "f1"}}, ".selector"),
    (SERVICE, "spec.cloudWorker.model", {"selector": {"metadata": {}}}, ".selector"),
    (DETECTING, "spec.edgeWorker.hardExampleMining", SHARPNESS, ""),
    (SEVERAL, "spec.edgeWorkers", [{**NORTH, "name": "joint"}], "[0].name"),
    (SEVERAL, "spec.edgeWorkers", [{**NORTH, "name": "edge"}], "[0].name"),
    (SEVERAL, "spec.edgeWorkers", [NORTH, NORTH], ""),
    (SEVERAL, "spec.edgeWorkers", [{**NORTH, "source": {"path": "x"}}], "[0].source.path"),
    (SEVERAL, "spec.cloudWorker.hpa", {"minReplicas": 3, "maxReplicas": 2}, ".minReplicas"),
    (SEVERAL, "spec.edgeWorkers", [{**NORTH, "hpa": {"minReplicas": 3, "maxReplicas": 2}}], "[0].hpa.minReplicas"),
    (TIERS, "spec.edgeWorker", {**TIERS["spec"]["edgeWorker"], "fusion": "mixture"}, ".fusion"),
    (TIERS, "spec.edgeWorker", {**TIERS["spec"]["edgeWorker"], "committee": [{"name": "tiny"}]}, ".committee"),
    (TIERS, "spec.edgeWorker", {**TIERS["spec"]["edgeWorker"], "committee": [{"name": "a"}] * 2}, ".committee"),
    (TIERS, "spec.edgeWorker.occupancy", {"zones": [ZONE, ZONE]}, ".zones"),
    (SERVICE, "spec", {**SERVICE["spec"], "edgeWorker": EDGE, "tiers": [GATE]}, ".tiers"),
    (SERVICE, "spec.edgeWorker", {**EDGE, "detector": {"name": "finder"}}, ".detector"),
    (SERVICE, "spec.edgeWorker", {**EDGE, "hardExampleMining": SHARPNESS}, ".upload"),
    (TIERS, "spec.tiers", [{**GATE, "name": "cloud"}], "[0].name"),
    (TIERS, "spec.tiers", [{**GATE, "name": "joint"}], "[0].name"),
    (TIERS, "spec.tiers", [GATE, GATE], ""),
    (TIERS, "spec.tiers", [{k: v for k, v in GATE.items() if k != "calibration"}], "[0].fusion"),
    (TIERS, "spec.tiers", [{**GATE, "costs": {"miss": 1, "upload": 1}}], "[0].targetUploadRatio"),
    (TIERS, "spec.tiers", [{**FREE, "costs": {"miss": 0, "upload": 1}}], "[0].costs.miss"),
    (TIERS, "spec.tiers", [{**FREE, "costs": {"miss": 1, "upload": 1, "adaptive": True}}], "[0].costs"),
    (TIERS, "spec.tiers", [{**FREE, "costs": {"miss": 0, "falseAlarm": 0, "upload": 0}}], "[0].costs.miss"),
    (TIERS, "spec.tiers", [{**GATE, "hpa": {"minReplicas": 3, "maxReplicas": 2}}], "[0].hpa.minReplicas"),
    (TRAINING, "spec.trainers", [TRAINER, TRAINER], ""),
    (TRAINING, "spec.trainers", [{**TRAINER, "name": "aggregator"}, OTHER], "[0].name"),
    (TRAINING, "spec.trainers", [{k: v for k, v in TRAINER.items() if k != "dataset"}, OTHER], "[0]"),
    (TRAINING, "spec.minClients", 3, ""),
    (SERVED, "spec.manifest", [], ""),
    (SERVED, "spec.targetVersion", "5", ""),
    (SERVED, "spec.manifest", [{"version": "4", "downloadURL": "/a"}, {"version": "4", "downloadURL": "/b"}], ""),
    (SERVED, "spec.manifest", [{"version": "4", "downloadURL": "ftp://a"}], "[0].downloadURL"),
    (SERVED, "spec.manifest", [{"version": "4"}], "[0].downloadURL"),
    (SERVED, "spec.ingress", {"path": "v2"}, ".path"),
    (MODEL, "spec.postprocess", {"task": "classification", "boxes": {"decode": "yolo"}}, ".task"),
    (MODEL, "spec.postprocess", {"task": "classification", "nms": {}}, ".task"),
]

#: rules that stand for a union's tags: ``parse`` reads one type or another and has words of its own
BROKEN_STEPS: list[tuple[dict[str, Any], str]] = [
    ({"op": "resize", "width": 1}, ""),
    ({"op": "layout"}, ""),
    ({"op": "letterbox", "width": 1}, ""),
    ({"op": "crop", "height": 1}, ""),
    ({"op": "cast"}, ""),
    ({"op": "grayscale", "width": 1}, ".width"),
    ({"op": "cast", "dtype": "float32", "order": "hwc"}, ".order"),
    ({"op": "resize", "width": 1, "height": 1, "factor": 1}, ".factor"),
    ({"op": "channels"}, ""),
    ({"op": "resize", "width": 1, "height": 1, "x": 1}, ".x"),
    ({"op": "crop", "width": 1, "height": 1, "fill": 1}, ".fill"),
    ({"op": "script"}, ""),
    ({"op": "grayscale", "file": "pre.py"}, ".file"),
]


def written(path: str) -> str:
    """Return a path as Kubernetes writes it."""
    return re.sub(r"\.(\d+)", r"[\1]", path)
