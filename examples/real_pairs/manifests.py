"""What all pairs write alike: the parts of their frames, two Models, and the service before its calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halimede.cli.output import to_yaml

#: of the frames of a pair, each in a folder of its name
PARTS = ("calibrate", "test")
#: milliseconds that a frame may wait for the cloud: what a slow machine needs, so that its speed decides no figure
DEADLINE_MS = 120_000


def model(name: str, file: Path, **spec: Any) -> dict[str, Any]:
    """Return the manifest of a Model."""
    body = {"url": str(file.resolve()), **spec}
    return {"apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": body}


def service(name: str, small: str, big: str, rule: str, cameras: Sequence[str] = ()) -> dict[str, Any]:
    """Return the manifest of a service whose rule is still to be calibrated. Without cameras it has one of its name."""
    edge = {
        "model": {"name": small},
        "hardExampleMining": {"name": rule},
        "source": {"cameras": list(cameras) or [name]},
        "deadlineMs": DEADLINE_MS,
        **_template("edge"),
    }
    return {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "JointInferenceService",
        "metadata": {"name": name},
        "spec": {"edgeWorker": edge, "cloudWorker": {"model": {"name": big}, **_template("cloud")}},
    }


def write(path: Path, bodies: Sequence[dict[str, Any]]) -> None:
    """Write manifests into one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("---\n".join(map(to_yaml, bodies)))


def _template(role: str) -> dict[str, Any]:
    return {
        "template": {
            "spec": {
                "nodeSelector": {f"node-role.kubernetes.io/{role}": ""},
                "containers": [{"name": role, "image": "halimede/worker"}],
            }
        }
    }
