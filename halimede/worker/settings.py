"""The validated environment of a worker. docs/reference/environment.md has the table of variables.

A pure function of a mapping: it opens no files. Every error is an InvalidFieldError that names the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

from halimede.api.base import convert
from halimede.api.deferral import (
    AS_IT_CAME,
    LEAST_BYTES,
    MOST_BYTES,
    Costs,
    Parameter,
    UploadContent,
    UploadEncoding,
    check_costs,
)
from halimede.api.jointinference import (
    BATCH,
    DELAY_MS,
    MOST_BATCH,
    MOST_DELAY_MS,
    Detector,
    FrameSourceSpec,
    KeepHardSamples,
)
from halimede.api.mining import AFTER, BEFORE
from halimede.api.model import ModelSpec
from halimede.api.model import check as check_model
from halimede.api.worker_environment import SESSION_KEY, session_key_pattern
from halimede.environment import flag, number, one_of, required
from halimede.errors import InvalidFieldError
from halimede.names import check_label, check_name
from halimede.system.cpu import cores

T = TypeVar("T")

Role = Literal["edge", "cloud"]
MiningMode = Literal["inference-then-mining", "mining-then-inference"]
Fusion = Literal["cloud", "mixture"]

BROKER = "127.0.0.1:1883"
HOME = "~/.local/state/halimede"
#: any free port on loopback; the worker's reports contain it
DEFAULT_HTTP = "127.0.0.1:0"
MAX_UID = 64
MOST_THREADS = 256


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """The detector of an edge worker: its file and spec. ``boxes``: which of its boxes are cropped."""

    path: str
    model: ModelSpec
    boxes: Detector


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker. Times are seconds; ``source`` and ``deadline_s`` apply only at the edge.

    The fields from ``hem_`` up to ``next_tier`` apply to a worker that requests a next tier: an edge worker or a tier.
    ``tier`` and ``next_tier`` are empty in a service without tiers.
    """

    role: Role
    namespace: str
    service: str
    worker: str
    node: str
    uid: str
    model_path: str
    model: ModelSpec
    estimator: str
    broker: str
    state: Path
    period_s: float
    grace_s: float
    model_timeout_s: float = 60.0
    hem_name: str = ""
    hem_parameters: Mapping[str, str] = field(default_factory=dict)
    hem_mode: MiningMode = "inference-then-mining"
    #: the further small models of a committee: path and spec of each
    committee: tuple[tuple[str, ModelSpec], ...] = ()
    #: the file that `halimede calibrate` wrote
    calibration: Path | None = None
    target_upload_ratio: float | None = None
    #: costs of errors and uploads, by which thresholds are adapted
    costs: Costs | None = None
    audit_share: float = 0.0
    fusion: Fusion = "cloud"
    #: encoding of uploaded samples, and most bytes of each
    upload_encoding: UploadEncoding = AS_IT_CAME
    upload_max_bytes: int | None = None
    #: what is uploaded of a hard frame
    upload: UploadContent = "frame"
    #: for workers that answer requests: samples of one model call; seconds that a sample may wait for others; parallel
    #: calls, and threads of each
    batch: int = BATCH
    delay_s: float = DELAY_MS / 1000
    sessions: int = 1
    threads: int = 1
    tier: str = ""
    next_tier: str = ""
    keep: KeepHardSamples | None = None
    #: None: samples are whole frames
    detector: DetectorSettings | None = None
    source: FrameSourceSpec = field(default_factory=FrameSourceSpec)
    deadline_s: float = 2.0
    data_prefix: str = ""
    loop_source: bool = False
    credentials: str = ""
    http: str = "off"
    hard_samples: bool = True
    model_file: Path | None = None
    #: the secret part of the client ids of its sessions for frames; empty: it has none
    session_key: str = field(default="", repr=False)

    def names(self) -> dict[str, str]:
        """Return the names for replies to trace requests."""
        return {"namespace": self.namespace, "service": self.service, "worker": self.worker, "node": self.node}

    def client_id(self, part: str = "worker") -> str:
        """Return the client id of one of its connections: worker names are unique within a namespace."""
        return check_name("WORKER_NAME", f"{part}.{self.namespace}.{self.worker}")


def read(
    role: Role, environ: Mapping[str, str], *, own_estimator: bool = False, mines: bool | None = None
) -> WorkerSettings:
    """Read the environment. ``own_estimator``: the caller brings one, so that no model file is required.

    ``mines``: whether the worker mines, so that the mining settings are required; by default at the edge. Raises
    InvalidFieldError.
    """
    mines = role == "edge" if mines is None else mines
    namespace = check_label("NAMESPACE", environ.get("NAMESPACE") or "default")
    worker = check_name("WORKER_NAME", required(environ, "WORKER_NAME"))
    node = check_name("NODE_NAME", required(environ, "NODE_NAME"))
    service = check_name("SERVICE_NAME", required(environ, "SERVICE_NAME"))
    estimator = environ.get("ESTIMATOR", "")
    path, model = _model(environ, optional=own_estimator or bool(estimator))
    common: dict[str, Any] = {
        "role": role,
        "namespace": namespace,
        "service": service,
        "worker": worker,
        "node": node,
        "uid": _uid(environ),
        "model_path": path,
        "model": model,
        "estimator": estimator,
        "broker": environ.get("HALIMEDE_BROKER") or BROKER,
        "credentials": environ.get("HALIMEDE_CREDENTIALS", ""),
        "http": environ.get("HALIMEDE_HTTP") or DEFAULT_HTTP,
        "state": _state(environ, namespace, node, worker),
        "period_s": number(environ, "LC_PERIOD", 1.0, least=0.01, most=3600),
        "grace_s": number(environ, "GRACE_S", 10.0, least=0, most=3600),
        "model_timeout_s": number(environ, "MODEL_TIMEOUT_S", 60.0, least=0.1, most=86_400),
        "model_file": Path(environ["MODEL_FILE"]) if environ.get("MODEL_FILE") else None,
        "session_key": _session_key(environ),
        "tier": environ.get("TIER", ""),
        "threads": int(number(environ, "MODEL_THREADS", 1, least=1, most=MOST_THREADS)),
    }
    if mines:
        common |= _deferral(environ)
        _check_upload(common["upload"], model)
    if role == "cloud":
        return WorkerSettings(**common, **_batching(environ, common["threads"]))
    return WorkerSettings(
        **common,
        source=_source(environ, service),
        committee=_committee(environ),
        detector=_detector(environ),
        deadline_s=number(environ, "DEADLINE_MS", 2000, least=1, most=600_000) / 1000,
        data_prefix=environ.get("DATA_PATH_PREFIX", ""),
        loop_source=flag(environ, "SOURCE_LOOP"),
        hard_samples=_switch(environ, "HARD_SAMPLES"),
        keep=read_json(environ, "KEEP_HARD_SAMPLES", KeepHardSamples) if environ.get("KEEP_HARD_SAMPLES") else None,
    )


def _detector(environ: Mapping[str, str]) -> DetectorSettings | None:
    """Read the detector of an edge worker. Raises InvalidFieldError."""
    path = environ.get("DETECTOR_URL", "")
    if not path:
        if environ.get("DETECTOR"):
            raise InvalidFieldError("DETECTOR_URL", "", "write the path of the detector's file, or remove DETECTOR")
        return None
    boxes = read_json(environ, "DETECTOR", Detector) if environ.get("DETECTOR") else Detector(name="detector")
    model = read_spec(environ, "DETECTOR_SPEC", path)
    if not _may_find_boxes(model):
        fix = "the detector must find boxes: name a Model whose spec.postprocess.task is detection"
        raise InvalidFieldError("DETECTOR_SPEC.postprocess.task", _task(model), fix)
    return DetectorSettings(path, model, boxes)


def _check_upload(upload: UploadContent, model: ModelSpec) -> None:
    """Refuse regions of a model that finds no boxes."""
    if upload == "regions" and not _may_find_boxes(model):
        cause = f"the small model finds no boxes (task {_task(model)})"
        raise InvalidFieldError("UPLOAD", upload, f"{cause}: leave UPLOAD at frame, the field upload of the service")


def _may_find_boxes(model: ModelSpec) -> bool:
    """Whether a model may find boxes; what a user's own code finds is not known here."""
    return _task(model) in {"", "detection"}


def _task(model: ModelSpec) -> str:
    """Return a model's task; empty if its spec has none."""
    return model.postprocess.task if model.postprocess else ""


def _batching(environ: Mapping[str, str], threads: int) -> dict[str, Any]:
    """Read the batching of requests. The default is one call at a time for each core."""
    sessions = min(MOST_THREADS, max(1, cores() // threads))
    return {
        "batch": int(number(environ, "MAX_BATCH_SIZE", BATCH, least=1, most=MOST_BATCH)),
        "delay_s": number(environ, "MAX_QUEUE_DELAY_MS", DELAY_MS, least=0, most=MOST_DELAY_MS) / 1000,
        "sessions": int(number(environ, "MODEL_SESSIONS", sessions, least=1, most=MOST_THREADS)),
    }


def _deferral(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings of escalation, and how two answers are fused."""
    target = environ.get("TARGET_UPLOAD_RATIO")
    read = {
        "hem_name": required(environ, "HEM_NAME"),
        "hem_parameters": _parameters(environ),
        "hem_mode": one_of(environ, "MINING_MODE", get_args(MiningMode)),
        "calibration": Path(environ["CALIBRATION_URL"]) if environ.get("CALIBRATION_URL") else None,
        "target_upload_ratio": number(environ, "TARGET_UPLOAD_RATIO", 0, least=0, most=1) if target else None,
        "costs": _costs(environ),
        "audit_share": number(environ, "AUDIT_SHARE", 0, least=0, most=1),
        "fusion": one_of(environ, "FUSION", get_args(Fusion)),
        "upload": one_of(environ, "UPLOAD", get_args(UploadContent)),
        "upload_encoding": one_of(environ, "UPLOAD_ENCODING", get_args(UploadEncoding)),
        "upload_max_bytes": int(number(environ, "UPLOAD_MAX_BYTES", 0, least=LEAST_BYTES, most=MOST_BYTES))
        if environ.get("UPLOAD_MAX_BYTES")
        else None,
        "next_tier": environ.get("NEXT_TIER", ""),
    }
    if read["fusion"] == "mixture" and read["calibration"] is None:
        raise InvalidFieldError("FUSION", "mixture", "set CALIBRATION_URL as well, or leave FUSION at cloud")
    if read["upload"] == "regions" and read["hem_mode"] == BEFORE:
        fix = f"regions are those of the small model's boxes: set MINING_MODE to {AFTER}, or UPLOAD to frame"
        raise InvalidFieldError("UPLOAD", "regions", fix)
    return read


def _committee(environ: Mapping[str, str]) -> tuple[tuple[str, ModelSpec], ...]:
    named = (("COMMITTEE1_URL", "COMMITTEE1_SPEC"), ("COMMITTEE2_URL", "COMMITTEE2_SPEC"))
    return tuple((path, read_spec(environ, spec, path)) for url, spec in named if (path := environ.get(url)))


def _costs(environ: Mapping[str, str]) -> Costs | None:
    if not environ.get("COSTS"):
        return None
    costs = read_json(environ, "COSTS", Costs)
    check_costs("COSTS", costs)
    return costs


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").lower()
    if text not in {"", "on", "off"}:
        raise InvalidFieldError(name, text, "write on or off")
    return text != "off"


def read_json(environ: Mapping[str, str], name: str, wanted: type[T]) -> T:
    """Return a variable that holds JSON of a type. Raises InvalidFieldError."""
    text = environ[name]
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidFieldError(name, text, f"write JSON: {error}") from error
    return convert(value, wanted, name)


def _uid(environ: Mapping[str, str]) -> str:
    uid = environ.get("SERVICE_UID", "")
    if len(uid.encode()) > MAX_UID:
        raise InvalidFieldError("SERVICE_UID", uid, f"use at most {MAX_UID} bytes")
    return uid


def _session_key(environ: Mapping[str, str]) -> str:
    """Return the session key of the service, empty if there is none. Raises InvalidFieldError without the value."""
    key = environ.get(SESSION_KEY, "")
    if key and not session_key_pattern.fullmatch(key):
        raise InvalidFieldError(SESSION_KEY, "***", "GM writes 32 hexadecimal digits: do not set it yourself")
    return key


def _state(environ: Mapping[str, str], namespace: str, node: str, worker: str) -> Path:
    """Return the worker's folder: the configured one, or the local controller's default."""
    if told := environ.get("HALIMEDE_STATE"):
        return Path(told)
    home = Path(environ.get("HALIMEDE_HOME") or HOME).expanduser()
    return home / "nodes" / node / "workers" / namespace / worker


def _model(environ: Mapping[str, str], *, optional: bool) -> tuple[str, ModelSpec]:
    path = environ.get("MODEL_URL", "") if optional else required(environ, "MODEL_URL")
    return path, read_spec(environ, "MODEL_SPEC", path)


def read_spec(environ: Mapping[str, str], name: str, path: str) -> ModelSpec:
    """Return a model's spec, by default that of an ONNX file. Raises InvalidFieldError."""
    if not environ.get(name):
        return ModelSpec(url=path, format="onnx")
    spec = read_json(environ, name, ModelSpec)
    try:
        check_model(spec)
    except InvalidFieldError as error:
        raise InvalidFieldError(error.field.replace("spec", name, 1), error.value, error.fix) from error
    return spec


def _parameters(environ: Mapping[str, str]) -> dict[str, str]:
    if not environ.get("HEM_PARAMETERS"):
        return {}
    parameters = read_json(environ, "HEM_PARAMETERS", list[Parameter])
    return {parameter.key: parameter.value for parameter in parameters}


def _source(environ: Mapping[str, str], service: str) -> FrameSourceSpec:
    source = read_json(environ, "SOURCE", FrameSourceSpec) if environ.get("SOURCE") else FrameSourceSpec()
    if len(source.kinds) > 1:
        raise InvalidFieldError("SOURCE", environ["SOURCE"], "give one of cameras, path and url")
    if not source.kinds:
        source.cameras = [check_label("SERVICE_NAME", service)]
    return source
