"""Services of tiny models whose answers are known: logits in, their softmax out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from halimede.evaluation.data import LabelledSamples
from tests.graphs import FLOAT, write_graph
from tests.unit.api.samples import resource

TEMPLATE = {"spec": {"containers": [{"name": "w", "image": "halimede/worker"}]}}


def samples_of(images: Sequence[Any], **truth: Any) -> LabelledSamples:
    """Return samples whose names are their numbers."""
    names = [str(i) for i in range(len(images))]
    return LabelledSamples(images=list(images), names=names, sizes=[12] * len(images), **truth)


def model(folder: Path, name: str, factor: float = 1.0) -> dict[str, Any]:
    """Write a model of the classes a, b and c, return its manifest with a relative url. ``factor``: that of a and b."""
    ports = {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, ["N", 3])}
    factors = {"k": np.array([factor, factor, 1], np.float32)}
    write_graph(folder / f"{name}.onnx", [("Mul", ["x", "k"], ["y"], {})], *ports, factors)
    spec = {"url": f"./{name}.onnx", "format": "onnx", "labels": ["a", "b", "c"],
            "postprocess": {"task": "classification", "activation": "softmax"}}  # fmt: skip
    return resource("Model", spec, name)


def joint(tiers: tuple[str, ...] | list[str] = (), mining: str = "Margin", **parameters: str) -> dict[str, Any]:
    """Return the manifest of a service of the models ``small``, ``tiers`` and ``big``."""
    rule = {"name": mining, "parameters": [{"key": key, "value": value} for key, value in parameters.items()]}

    def worker(name: str) -> dict[str, Any]:
        return {"model": {"name": name}, "hardExampleMining": rule, "template": TEMPLATE}

    cloud = {"model": {"name": "big"}, "template": TEMPLATE}
    spec = {"edgeWorker": worker("small"), "cloudWorker": cloud}
    if tiers:
        spec["tiers"] = [{"name": name, **worker(name)} for name in tiers]
    return resource("JointInferenceService", spec, "letters")


def write(folder: Path, *bodies: dict[str, Any], name: str = "service.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump_all(bodies))
    return path
