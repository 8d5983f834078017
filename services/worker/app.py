"""``halimede worker``: the command line of a worker, which has only its role.

All other settings come from the environment, which a controller sets. Nodes start it for a service without its own
script.
"""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Sequence

from halimede import __version__

#: the end of the help: environment variables, examples and exit codes
ENVIRONMENT = """\
environment (the local controller sets it; the whole table is in docs/reference/environment.md):
  NAMESPACE, SERVICE_NAME, WORKER_NAME, NODE_NAME    its names
  SERVICE_UID                  uid of the service: another one resets the counts
  MODEL_URL, MODEL_SPEC        local path of the model, its spec as JSON
  MODEL_FILE                   file that names the model in place of these; the worker follows its changes
  ESTIMATOR                    module:Class of your own estimator, in place of a model runtime
  HALIMEDE_BROKER              host:port, mqtt://host:port or mqtts://host:port (default 127.0.0.1:1883)
  HALIMEDE_MQTT_CLIENT         lean (default): halimede's MQTT client; paho: paho-mqtt
  HALIMEDE_CREDENTIALS         folder of its credentials: password, or ca.crt, tls.crt and tls.key
  HALIMEDE_HTTP                host:port of its health and metrics, or off (default 127.0.0.1:0, any free port)
  HALIMEDE_STATE               folder for the ledger of counts
  LC_PERIOD, GRACE_S           seconds between reports; seconds to drain after SIGTERM
  MODEL_TIMEOUT_S              seconds after which one call of the model counts as stuck
  MODEL_THREADS                cores that one call of the model may use (default 1)
  OTEL_TRACES_EXPORTER, ...    of OpenTelemetry: otlp or console exports traces (docs/observability.md)
edge and tier:
  HEM_NAME, HEM_PARAMETERS     hard example mining: name, JSON list of {"key", "value"}
  MINING_MODE                  inference-then-mining (default), or mining-then-inference
  TARGET_UPLOAD_RATIO          share of samples to upload in the long run
  COSTS                        JSON: costs by which two thresholds follow the stream
  AUDIT_SHARE                  share of easy samples to upload as well
  CALIBRATION_URL              file of halimede calibrate; FUSION: cloud (default) or mixture
  UPLOAD                       content of uploads of hard frames: frame (default) or regions
  UPLOAD_ENCODING              encoding of uploads: as-it-came (default), raw, jpeg or png
  UPLOAD_MAX_BYTES             maximum of an upload: larger ones become JPEG, or smaller pictures
  TIER, NEXT_TIER              with tiers: its tier, and the one that it requests answers from (cloud: only TIER)
tier and cloud:
  MAX_BATCH_SIZE               maximum of samples in one model call (default 32)
  MAX_QUEUE_DELAY_MS           milliseconds that a sample may wait for a larger batch (default 0)
  MODEL_SESSIONS               concurrent calls of a model without user code (default: as many as the cores allow)
edge only:
  COMMITTEE1_URL, COMMITTEE1_SPEC, COMMITTEE2_URL, COMMITTEE2_SPEC
                               further models that answer together with this one, as MODEL_URL and MODEL_SPEC
  SOURCE                       JSON: {"cameras": [...]} or {"path": "/folder"}
  SOURCE_LOOP                  1: repeat a folder
  DEADLINE_MS                  how long a hard sample may wait for the cloud (default 2000)
  HARD_SAMPLES                 off: publish no previews of hard samples
  KEEP_HARD_SAMPLES            JSON: {"maxMegabytes", "maxSamples"} of the hard samples to store on the node
  OCCUPANCY                    JSON: {"minFrames", "holdS", "minScore", "labels", "zones"} of the occupancy events
  DETECTOR_URL, DETECTOR_SPEC  a model that finds boxes, as MODEL_URL and MODEL_SPEC: its crops are the samples
  DETECTOR                     JSON: {"name", "minScore", "maxBoxes", "margin"} of the boxes that are cropped
  SESSION_KEY                  secret of the service, set by GM: client ids of sessions cannot be computed without it
member and joint (of multi-edge services):
  APPLICATION                  JSON: {"name": "reid", "parameters": [{"key", "value"}]}
  PART, MEMBERS, CAMERAS       its name in the service; JSON lists of the edge workers and of its cameras
  JOINT                        cloud or members: where the joint runs
  DETECTOR_URL, DETECTOR_SPEC  member: the model that finds objects, as MODEL_URL and MODEL_SPEC
aggregator and trainer (of training jobs):
  TRAINING                     JSON: the job, with its trainers, rounds and limits (docs/training.md)
  TRAIN_DATASET_URL            trainer: folder or file with its samples
cameras that speak no MQTT are read by another program: halimede camera --help

Examples:
  NAMESPACE=default SERVICE_NAME=digits WORKER_NAME=digits-cloud NODE_NAME=cloud0 \\
    MODEL_URL=big.onnx HALIMEDE_BROKER=127.0.0.1:1883 halimede worker cloud

exit code: 0 after SIGTERM or SIGINT, 2 after a mistake that you can correct (see the last line)
"""


#: module and function that ``halimede worker ROLE`` calls for each role; a worker imports only that of its own role
ROLE_ENTRIES = {
    "edge": "halimede.worker:run_edge",
    "tier": "halimede.worker.tier_worker:run_tier",
    "cloud": "halimede.worker:run_cloud",
    "member": "halimede.multiedge.roles:run_member",
    "joint": "halimede.multiedge.roles:run_joint",
    "aggregator": "halimede.training.roles:run_aggregator",
    "trainer": "halimede.training.roles:run_trainer",
}
#: what each role does, for the help
DOES = {
    "edge": "receive frames, answer",
    "tier": "answer hard samples, and request answers to the hardest from the next tier",
    "cloud": "answer hard samples",
    "member": "an edge worker of a multi-edge service",
    "joint": "the joint of a multi-edge service",
    "aggregator": "make new weights of the trainers' updates",
    "trainer": "train on the samples of a node",
}


def parser() -> argparse.ArgumentParser:
    """Return the definition of the command line, from which the documents are made as well."""
    command = argparse.ArgumentParser(
        prog="halimede worker",
        description="A worker of a service: of joint inference (small model at the edge, big one in the cloud), or of "
        "multi-edge inference.",
        epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "program", choices=tuple(ROLE_ENTRIES), help="; ".join(f"{name}: {does}" for name, does in DOES.items())
    )
    command.add_argument("--version", action="version", version=__version__)
    return command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the worker of a role until it is stopped. After a mistake it exits with the code that its help names.

    ``arguments``: of the command line; None: those of this process.
    """
    pkgutil.resolve_name(ROLE_ENTRIES[parser().parse_args(arguments).program])()
