"""InferenceModels as the seeds write them, and a plain one of our own."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML

PLURAL = "inferencemodels"

#: the sample of the model operator's design document, value for value
SEDNA = """
apiVersion: sedna.io/v1alpha1
kind: InferenceModel
metadata:
  name: facialexpression
spec:
  modelName: facialexpression
  deployToLayer: edge
  frameworkType: tensorflow
  image: ''
  nodeSelector:
    kubernetes.io/hostname: precision-5820
  nodeName: precision-5820
  manifest:
    - version: '3'
      downloadURL: http://192.168.1.15/model_emotion_3.tar.gz
      sha256sum: dec87e2f3c06e60e554acac0b2b80e394c616b0ecdf878fab7f04fd414a66eff
    - version: '4'
      downloadURL: http://192.168.1.15/model_emotion_4.tar.gz
      sha256sum: 108a433a941411217e5d4bf9f43a262d0247a14c35ccbf677f63ba3b46ae6285
  targetVersion: '4'
  servingPort: 8501
  replicas: 1
"""

#: that of the proposal before it: another group, and an image that is left empty
KUBEEDGE = """
apiVersion: ai.kubeedge.io/v1alpha1
kind: InferenceModel
metadata:
  name: facialexpression
spec:
  modelName: facialexpression
  deployToLayer: edge
  frameworkType: tensorflow
  image:
  nodeSelector:
    kubernetes.io/hostname: precision-5820
  nodeName: precision-5820
  manifest:
  - version: '3'
    downloadURL: http://192.168.1.13/model_emotion_3.tar.gz
    sha256sum: dec87e2f3c06e60e554acac0b2b80e394c616b0ecdf878fab7f04fd414a66eff
  - version: '4'
    downloadURL: http://192.168.1.13/model_emotion_4.tar.gz
    sha256sum: 108a433a941411217e5d4bf9f43a262d0247a14c35ccbf677f63ba3b46ae6285
  targetVersion: '4'
  servingPort: 8080
  replicas: 1
"""


def read(text: str, **spec: Any) -> dict[str, Any]:
    """Return a sample as plain data, with these fields of its spec in place of its own."""
    body: dict[str, Any] = YAML(typ="safe").load(text)
    body["spec"] |= spec
    return body


def version(name: str, **more: Any) -> dict[str, Any]:
    """Return a version of a manifest."""
    return {"version": name, "downloadURL": f"https://models.example/{name}.tar.gz", **more}


def inference_model(name: str = "faces", **spec: Any) -> dict[str, Any]:
    """Return an InferenceModel of two versions, in the cloud."""
    return {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {
            "modelName": name,
            "deployToLayer": "cloud",
            "frameworkType": "onnx",
            "manifest": [version("1"), version("2")],
            **spec,
        },
    }
