"""Resources as people have them today: the joint inference proposal's own, and the forms that Sedna's users write."""

from __future__ import annotations

import json
from typing import Any

from ruamel.yaml import YAML

from tests.integration.inference_models import KUBEEDGE as SERVED_FIRST
from tests.integration.inference_models import SEDNA as SERVED

#: the proposal's sample, value for value
PROPOSAL = """
apiVersion: neptune.io/v1alpha1
kind: JointInferenceService
metadata:
  name: helmet-detection-demo
  namespace: default
spec:
  edgeWorker:
    name: "edgeworker"
    model:
      name: "small-model"
    nodeName: "edge0"
    hardExampleAlgorithm:
      name: "IBT"
    workerSpec:
      scriptDir: "/code"
      scriptBootFile: "edge_inference.py"
      frameworkType: "tensorflow"
      frameworkVersion: "1.18"
      parameters:
        - key: "nms_threshold"
          value: "0.6"
  cloudWorker:
    name: "work"
    model:
      name: "big-model"
    nodeName: "solar-corona-cloud"
    workerSpec:
      scriptDir: "/code"
      scriptBootFile: "cloud_inference.py"
      frameworkType: "tensorflow"
      frameworkVersion: "1.18"
      parameters:
        - key: "nms_threshold"
          value: "0.6"
"""

SEDNA_SERVICE = """
apiVersion: sedna.io/v1alpha1
kind: JointInferenceService
metadata: {name: helmet-detection, namespace: default}
spec:
  edgeWorker:
    model: {name: helmet-small}
    hardExampleMining:
      name: IBT
      parameters:
        - {key: threshold_img, value: "0.9"}
        - {key: threshold_box, value: "0.9"}
    template:
      metadata:
        creationTimestamp: null
        labels: {team: site-safety}
      spec:
        nodeName: edge-01
        hostNetwork: true
        dnsPolicy: ClusterFirstWithHostNet
        tolerations:
          - {key: node-role.kubernetes.io/edge, operator: Exists, effect: NoSchedule}
        containers:
          - name: little
            image: registry.example/joint-inference-little:v0.3.0
            imagePullPolicy: IfNotPresent
            ports: [{containerPort: 9000, protocol: TCP}]
            env:
              - {name: input_shape, value: "416,736"}
              - {name: video_url, value: "rtsp://localhost/video"}
              - {name: all_examples_inference_output, value: /data/output}
              - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
            livenessProbe: {tcpSocket: {port: 9000}}
            resources: {requests: {memory: 64M, cpu: 100m}, limits: {memory: 2Gi, cpu: 2}}
            volumeMounts:
              - {name: outputdir, mountPath: /data/, subPath: out}
        volumes:
          - {name: outputdir, hostPath: {path: /joint_inference/output, type: Directory}}
          - {name: scratch, emptyDir: {sizeLimit: 64Mi}}
    hpa: &hpa
      minReplicas: 1
      maxReplicas: 4
      metrics:
        - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
      behavior: {scaleDown: {stabilizationWindowSeconds: 60}}
  cloudWorker:
    model: {name: helmet-big}
    template:
      spec:
        nodeName: cloud-01
        containers:
          - name: big
            image: registry.example/joint-inference-big:v0.3.0
            env: [{name: input_shape, value: "544,544"}]
            resources: {requests: {memory: 2Gi}}
    hpa: *hpa
  dataset: {name: helmets}
"""

SEDNA_MODEL = """
apiVersion: sedna.io/v1alpha1
kind: Model
metadata: {name: helmet-small, namespace: default}
spec:
  url: s3://models/helmet/little.pb
  format: pb
  credentialName: s3-reader
  device_soc_versions: [Ascend310, Ascend310P]
"""

SEDNA_DATASET = """
apiVersion: sedna.io/v1alpha1
kind: Dataset
metadata: {name: helmets, namespace: default}
spec:
  url: /data/helmet/train.txt
  format: txt
  nodeName: edge-01
"""

LAPTOP_MODEL = """
apiVersion: sedna.io/v1alpha1
kind: Model
metadata: {name: digits-small}
spec:
  url: /models/small.onnx
  format: onnx
  labels: ["0", "1"]
  preprocess:
    - {op: grayscale}
    - {op: resize, width: 8, height: 8}
    - {op: channels, format: bgr}
    - {op: scale, factor: 0.0041, mean: 0.5, std: [1]}
    - {op: layout, order: flat}
    - {op: cast, dtype: float32}
  postprocess: {task: classification, output: probabilities}
"""

MULTI_EDGE = """
apiVersion: sedna.io/v1alpha1
kind: MultiEdgeInferenceService
metadata: {name: crossing, namespace: default}
spec:
  application: {name: reid, parameters: [{key: ttl, value: "600"}]}
  edgeWorkers:
    - name: north
      model: {name: embedder}
      detector: {name: finder}
      source: {cameras: [north, gate]}
      template: {spec: {nodeName: edge0, containers: [{image: halimede/worker}]}}
    - name: south
      model: {name: embedder}
      deadlineMs: 500
      template: {spec: {nodeSelector: {side: south}, containers: [{image: halimede/worker}]}}
  cloudWorker:
    template: {spec: {nodeName: cloud0, containers: [{image: halimede/worker}]}}
"""

TIERS = """
apiVersion: sedna.io/v1alpha1
kind: JointInferenceService
metadata: {name: site}
spec:
  edgeWorker:
    model: {name: tiny}
    hardExampleMining:
      name: Sharpness
      mode: mining-then-inference
      parameters: [{key: threshold_sharpness, value: "3"}]
    targetUploadRatio: 0.3
    keepHardSamples: {maxMegabytes: 64, maxSamples: 1000}
    occupancy:
      minFrames: 5
      holdS: 3.5
      labels: [person]
      zones:
        - {name: door, camera: tiers, polygon: [[0.1, 0.2], [0.5, 0.2], [0.5, 1]]}
    maxBytes: 60000
    deadlineMs: 500
    template: {spec: {nodeName: device0, containers: [{image: halimede/worker}]}}
  tiers:
    - name: gate
      model: {name: small}
      hardExampleMining: {name: Learned}
      calibration: {name: site-calibration}
      targetUploadRatio: 0.2
      auditShare: 0.01
      fusion: mixture
      encoding: jpeg
      template: {spec: {nodeSelector: {site: a}, containers: [{image: halimede/worker}]}}
      hpa: {minReplicas: 1, maxReplicas: 4}
    - name: region
      model: {name: middle}
      hardExampleMining: {name: Margin}
      maxBatchSize: 8
      maxQueueDelayMs: 2.5
      template: {spec: {nodeName: region0, containers: [{image: halimede/worker}]}}
  cloudWorker:
    model: {name: big}
    template: {spec: {nodeName: cloud0, containers: [{image: halimede/worker}]}}
"""

VERSIONED_MODEL = """
apiVersion: sedna.io/v1alpha1
kind: Model
metadata: {name: digits}
spec:
  format: onnx
  task: classification
  versions:
    - {version: "1", url: /models/1.onnx}
    - {version: "2", url: "https://models.example/2.onnx", sha256: ""}
  targetVersion: "2"
  metrics:
    - {key: accuracy, value: "0.97"}
  rollout: {canaryPercent: 10}
"""

#: in use by a server: what `kubectl get -o yaml` prints goes back in
AS_STORED = {
    "uid": "0b8e3bd5-64b8-4f6e-8b1a-0e4a1d3b7c11",
    "resourceVersion": "4711",
    "generation": 3,
    "creationTimestamp": "2026-03-01T10:00:00Z",
    "managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {}}],
}

TRAINING = """
apiVersion: sedna.io/v1alpha1
kind: TrainingModel
metadata: {name: digits, namespace: default}
spec:
  model: {name: digits-small}
  trainer:
    entry: train.py:Digits
    archive: {name: digits-trainer}
    parameters: [{key: rate, value: "0.1"}]
  initial: {name: digits-weights}
  aggregator: {template: {spec: {nodeName: cloud0, containers: [{name: worker, image: halimede/worker}]}}}
  trainers:
    - name: edge0
      dataset: {name: digits-0}
      template: &edge
        spec: {nodeName: edge0, containers: [{name: worker, image: halimede/worker}]}
    - name: edge1
      hardSamples: {service: digits}
      template: *edge
  aggregation: {name: TrimmedMean, parameters: [{key: trim, value: "0.1"}]}
  compression: {dtype: float16, topK: 0.125}
  rounds: 30
  clientsPerRound: 2
  minClients: 2
  roundDeadlineS: 120
  target: {metric: accuracy, value: 0.95}
  limits: {memoryMb: 512, seconds: 60, cores: 1, hours: {begin: 22, end: 6}}
  seed: 7
"""

FEDERATED = """
apiVersion: sedna.io/v1alpha1
kind: FederatedLearningJob
metadata: {name: defects, namespace: default}
spec:
  pretrainedModel: {name: first-weights}
  transmitter: {ws: {}}
  aggregationWorker:
    model: {name: defects}
    template:
      spec:
        nodeName: cloud0
        containers:
          - name: aggregation
            image: halimede/worker
            env: [{name: exit_round, value: "3"}]
  trainingWorkers:
    - dataset: {name: defects-0}
      template: &training
        spec:
          nodeName: edge0
          containers:
            - name: training
              image: halimede/worker
              env: [{name: batch_size, value: "16"}, {name: learning_rate, value: "0.05"}, {name: epochs, value: "2"}]
    - dataset: {name: defects-1}
      template: *training
"""

INCREMENTAL = """
apiVersion: sedna.io/v1alpha1
kind: IncrementalLearningJob
metadata: {name: helmets, namespace: default}
spec:
  initialModel: {name: first-weights}
  dataset: {name: helmets, trainProb: 0.8}
  trainSpec:
    template: &pod
      spec: {nodeName: edge0, containers: [{name: worker, image: halimede/worker}]}
    trigger:
      checkPeriodSeconds: 60
      timer: {start: "02:00", end: "24:00"}
      condition: {operator: ">", threshold: 50, metric: num_of_samples}
  evalSpec:
    template: *pod
  deploySpec:
    model: {name: helmets, hotUpdateEnabled: true, pollPeriodSeconds: 60}
    trigger: {condition: {operator: ">", threshold: 0.1, metric: accuracy_delta}}
    hardExampleMining: {name: IBT, parameters: [{key: threshold_img, value: "0.9"}]}
    template: *pod
  outputDir: /output
"""


def read(text: str) -> dict[str, Any]:
    """Return a sample as plain data; an anchor's parts are separate, as they are after JSON."""
    body: dict[str, Any] = json.loads(json.dumps(YAML(typ="safe").load(text)))
    return body


def resource(kind: str, spec: dict[str, Any], name: str = "small") -> dict[str, Any]:
    return {"apiVersion": "sedna.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


SAMPLES = {
    "the proposal's": read(PROPOSAL),
    "a service of Sedna's": read(SEDNA_SERVICE),
    "a model of Sedna's": read(SEDNA_MODEL),
    "a dataset of Sedna's": read(SEDNA_DATASET),
    "a model with versions": read(VERSIONED_MODEL),
    "a model with steps": read(LAPTOP_MODEL),
    "several edges": read(MULTI_EDGE),
    "several tiers": read(TIERS),
    "the model operator's": read(SERVED),
    "a training": read(TRAINING),
    "a federated job of Sedna's": read(FEDERATED),
    "an incremental job of Sedna's": read(INCREMENTAL),
    "the model operator's in its first group": read(SERVED_FIRST),
}
