"""Services of tiny models whose answers are known: logits in, their softmax out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.graphs import FLOAT, write_graph

TEMPLATE = {"spec": {"containers": [{"name": "w", "image": "halimede/worker"}]}}
SEDNA = "sedna.io/v1alpha1"


def model(folder: Path, name: str, factor: float = 1.0) -> dict[str, Any]:
    """Write a model of the classes a, b and c, return its manifest with a relative url. ``factor``: that of a and b."""
    ports = {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, ["N", 3])}
    factors = {"k": np.array([factor, factor, 1], np.float32)}
    write_graph(folder / f"{name}.onnx", [("Mul", ["x", "k"], ["y"], {})], *ports, factors)
    spec = {"url": f"./{name}.onnx", "format": "onnx", "labels": ["a", "b", "c"],
            "postprocess": {"task": "classification", "activation": "softmax"}}  # fmt: skip
    return {"apiVersion": SEDNA, "kind": "Model", "metadata": {"name": name}, "spec": spec}


def joint(tiers: tuple[str, ...] | list[str] = (), mining: str = "Margin", **parameters: str) -> dict[str, Any]:
    """Return the manifest of a service of the models ``small``, ``tiers`` and ``big``."""
    rule = {"name": mining, "parameters": [{"key": key, "value": value} for key, value in parameters.items()]}
    between = [
        {"name": name, "model": {"name": name}, "hardExampleMining": rule, "template": TEMPLATE} for name in tiers
    ]
    spec: dict[str, Any] = {
        "edgeWorker": {"model": {"name": "small"}, "hardExampleMining": rule, "template": TEMPLATE},
        "cloudWorker": {"model": {"name": "big"}, "template": TEMPLATE},
    }
    if between:
        spec["tiers"] = between
    return {"apiVersion": SEDNA, "kind": "JointInferenceService", "metadata": {"name": "letters"}, "spec": spec}


def write(folder: Path, *bodies: dict[str, Any], name: str = "service.yaml") -> Path:
    """Write manifests into one file."""
    path = folder / name
    path.write_text(yaml.safe_dump_all(bodies))
    return path
