"""The settings of a worker (``WorkerSettings``), which ``read`` takes from its environment variables.

GM and LC set the variables; docs/reference/environment.md describes each. No files are opened here. Every error is an
InvalidFieldError that names the variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from halimede.api.occupancy import Occupancy, check_occupancy
from halimede.api.worker_environment import SESSION_KEY, session_key_pattern
from halimede.environment import is_enabled, number, one_of, require
from halimede.errors import InvalidFieldError
from halimede.names import check_label, check_name
from halimede.system.cpu import cores

T = TypeVar("T")

#: the side of a worker: edge, or cloud, which a tier is as well
Role = Literal["edge", "cloud"]
#: when mining judges a sample: by the edge's answer, or by the sample before any inference
MiningMode = Literal["inference-then-mining", "mining-then-inference"]
#: the answer to a hard sample: that of the cloud, or a mixture of both predictions
Fusion = Literal["cloud", "mixture"]

#: default broker, as host:port
BROKER = "127.0.0.1:1883"
#: default folder of local controllers
HOME = "~/.local/state/halimede"
#: address of health and metrics: any free port on loopback; the worker's reports contain it
DEFAULT_HTTP = "127.0.0.1:0"
#: most bytes of a service's uid
MAX_UID = 64
#: most threads of a call of the model, and most parallel calls
MOST_THREADS = 256


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """The detector of an edge worker: the path of its model, the model's spec, and which of its boxes are cropped."""

    path: str
    model: ModelSpec
    boxes: Detector


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of one worker.

    The fields from ``hem_name`` to ``upload``, and ``next_tier``, apply to a worker that requests a next tier: an edge
    worker or a tier. ``committee``, the fields from ``keep`` to ``deadline_s``, ``data_prefix``, ``loop_source`` and
    ``hard_samples`` apply to edge workers.

    Attributes:
        role: ``edge`` or ``cloud``; a tier is ``cloud``.
        namespace: that of the service.
        service: the service's name.
        worker: the worker's name.
        node: its node.
        uid: the service's uid; empty if unknown.
        model_path: file or folder of the model; empty: it has none.
        model: the model's spec.
        estimator: a user's own estimator as ``module:class``; empty: none.
        broker: the broker, as host:port or as a URL with mqtt:// or mqtts://.
        state: the worker's own folder, which survives restarts.
        period_s: seconds between two checks for a changed report; each third one sends an unchanged report as well.
        grace_s: seconds to answer accepted samples at the end.
        model_timeout_s: seconds after which one call of the model counts as stuck, and the worker ends.
        hem_name: the mining algorithm, which decides which samples are hard.
        hem_parameters: its parameters.
        hem_mode: whether it judges predictions, or samples before the inference.
        committee: path and spec of the further small models of a committee.
        calibration: the file that ``halimede calibrate`` wrote; None: there is none.
        target_upload_ratio: the budget: share of the samples (0..1) that may be uploaded; None: there is none.
        costs: of errors and uploads, by which thresholds are adapted; None: they are not.
        audit_share: share of the easy samples (0..1) that is uploaded as well.
        fusion: the answer to a hard sample: the next tier's (``cloud``), or both answers mixed (``mixture``).
        upload_encoding: encoding of uploaded samples.
        upload_max_bytes: most bytes of an uploaded sample; None: no limit.
        upload: what is uploaded of a hard frame: all of it, or regions.
        batch: most samples in one model call, of a worker that answers requests.
        delay_s: most seconds that a request waits for others in its batch.
        sessions: parallel calls of the model.
        threads: threads of each call.
        tier: the worker's tier; empty in a service without tiers.
        next_tier: the tier that it requests; empty in a service without tiers.
        keep: how many hard samples are stored; None: none.
        occupancy: rules of the service's occupancy events; None: there are no events.
        detector: finds the boxes whose crops are the samples; None: samples are whole frames.
        source: where the frames come from.
        deadline_s: seconds that the next tier has for an answer.
        data_prefix: is put before paths of the service's spec.
        loop_source: a folder or file is repeated without end.
        credentials: folder with the worker's credentials for the broker; empty: none.
        http: host:port of its health and metrics, or ``off``.
        hard_samples: previews of hard samples are published.
        model_file: the desired-state file of a local controller; None: there is none.
        session_key: the secret from which the client ids of its sessions for frames are computed; empty: it has none.

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
    committee: tuple[tuple[str, ModelSpec], ...] = ()
    calibration: Path | None = None
    target_upload_ratio: float | None = None
    costs: Costs | None = None
    audit_share: float = 0.0
    fusion: Fusion = "cloud"
    upload_encoding: UploadEncoding = AS_IT_CAME
    upload_max_bytes: int | None = None
    upload: UploadContent = "frame"
    batch: int = BATCH
    delay_s: float = DELAY_MS / 1000
    sessions: int = 1
    threads: int = 1
    tier: str = ""
    next_tier: str = ""
    keep: KeepHardSamples | None = None
    occupancy: Occupancy | None = None
    detector: DetectorSettings | None = None
    source: FrameSourceSpec = field(default_factory=FrameSourceSpec)
    deadline_s: float = 2.0
    data_prefix: str = ""
    loop_source: bool = False
    credentials: str = ""
    http: str = "off"
    hard_samples: bool = True
    model_file: Path | None = None
    session_key: str = field(default="", repr=False)

    def names(self) -> dict[str, str]:
        """Return the names that identify the worker in traces and stored samples: namespace, service, worker, node."""
        return {"namespace": self.namespace, "service": self.service, "worker": self.worker, "node": self.node}

    def client_id(self, connection: str = "worker") -> str:
        """Return the client id of one of its connections, which is unique because the worker's name is.

        ``connection``: which one: ``worker``, or ``intake`` for frames. Raises InvalidFieldError if it is too long.
        """
        return check_name("WORKER_NAME", f"{connection}.{self.namespace}.{self.worker}")


def read(
    role: Role, environ: Mapping[str, str], *, own_estimator: bool = False, mines: bool | None = None
) -> WorkerSettings:
    """Return the settings in ``environ`` of a worker of this role. Raises InvalidFieldError.

    ``own_estimator``: the caller brings an estimator, so that no model file is required. ``mines``: the worker decides
    which samples are hard, so that the settings of mining are required; None: only at the edge.
    """
    mines = role == "edge" if mines is None else mines
    namespace = check_label("NAMESPACE", environ.get("NAMESPACE") or "default")
    worker = check_name("WORKER_NAME", require(environ, "WORKER_NAME"))
    node = check_name("NODE_NAME", require(environ, "NODE_NAME"))
    service = check_name("SERVICE_NAME", require(environ, "SERVICE_NAME"))
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
    source = _source(environ, service)
    return WorkerSettings(
        **common,
        source=source,
        committee=_committee(environ),
        detector=_detector(environ),
        deadline_s=number(environ, "DEADLINE_MS", 2000, least=1, most=600_000) / 1000,
        data_prefix=environ.get("DATA_PATH_PREFIX", ""),
        loop_source=is_enabled(environ, "SOURCE_LOOP"),
        hard_samples=_is_on(environ, "HARD_SAMPLES"),
        keep=read_json(environ, "KEEP_HARD_SAMPLES", KeepHardSamples) if environ.get("KEEP_HARD_SAMPLES") else None,
        occupancy=_occupancy(environ, source.cameras),
    )


def _occupancy(environ: Mapping[str, str], cameras: Sequence[str]) -> Occupancy | None:
    """Return the rules of occupancy events, checked for these cameras; None: no events. Raises InvalidFieldError."""
    rules = read_json(environ, "OCCUPANCY", Occupancy) if environ.get("OCCUPANCY") else None
    check_occupancy("OCCUPANCY", rules, cameras)
    return rules


def _detector(environ: Mapping[str, str]) -> DetectorSettings | None:
    """Return the detector of an edge worker; None if it has none. Raises InvalidFieldError."""
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
    """Raise InvalidFieldError if regions are to be uploaded, but the model finds no boxes."""
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
    """Return the fields of a worker that answers requests. Raises InvalidFieldError.

    By default as many calls run in parallel as the cores allow, with ``threads`` threads for each call.
    """
    sessions = min(MOST_THREADS, max(1, cores() // threads))
    return {
        "batch": int(number(environ, "MAX_BATCH_SIZE", BATCH, least=1, most=MOST_BATCH)),
        "delay_s": number(environ, "MAX_QUEUE_DELAY_MS", DELAY_MS, least=0, most=MOST_DELAY_MS) / 1000,
        "sessions": int(number(environ, "MODEL_SESSIONS", sessions, least=1, most=MOST_THREADS)),
    }


def _deferral(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a worker that requests a next tier. Raises InvalidFieldError."""
    target = environ.get("TARGET_UPLOAD_RATIO")
    fields = {
        "hem_name": require(environ, "HEM_NAME"),
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
    if fields["fusion"] == "mixture" and fields["calibration"] is None:
        raise InvalidFieldError("FUSION", "mixture", "set CALIBRATION_URL as well, or leave FUSION at cloud")
    if fields["upload"] == "regions" and fields["hem_mode"] == BEFORE:
        fix = f"regions are those of the small model's boxes: set MINING_MODE to {AFTER}, or UPLOAD to frame"
        raise InvalidFieldError("UPLOAD", "regions", fix)
    return fields


def _committee(environ: Mapping[str, str]) -> tuple[tuple[str, ModelSpec], ...]:
    """Return path and spec of the further models of a committee. Raises InvalidFieldError."""
    variables = (("COMMITTEE1_URL", "COMMITTEE1_SPEC"), ("COMMITTEE2_URL", "COMMITTEE2_SPEC"))
    return tuple((path, read_spec(environ, spec, path)) for url, spec in variables if (path := environ.get(url)))


def _costs(environ: Mapping[str, str]) -> Costs | None:
    """Return the costs of errors and uploads; None if they are not given. Raises InvalidFieldError."""
    if not environ.get("COSTS"):
        return None
    costs = read_json(environ, "COSTS", Costs)
    check_costs("COSTS", costs)
    return costs


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable is on or not set, and not off. Raises InvalidFieldError for other values."""
    text = environ.get(name, "").lower()
    if text not in {"", "on", "off"}:
        raise InvalidFieldError(name, text, "write on or off")
    return text != "off"


def read_json(environ: Mapping[str, str], name: str, type_: type[T]) -> T:
    """Return the value of a type in a variable that is set and holds JSON. Raises InvalidFieldError."""
    text = environ[name]
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidFieldError(name, text, f"write JSON: {error}") from error
    return convert(value, type_, name)


def _uid(environ: Mapping[str, str]) -> str:
    """Return the service's uid; empty if it is not given. Raises InvalidFieldError if it is too long."""
    uid = environ.get("SERVICE_UID", "")
    if len(uid.encode()) > MAX_UID:
        raise InvalidFieldError("SERVICE_UID", uid, f"use at most {MAX_UID} bytes")
    return uid


def _session_key(environ: Mapping[str, str]) -> str:
    """Return the session key of the service; empty if there is none. Raises InvalidFieldError, without the secret."""
    key = environ.get(SESSION_KEY, "")
    if key and not session_key_pattern.fullmatch(key):
        raise InvalidFieldError(SESSION_KEY, "***", "GM writes 32 hexadecimal digits: do not set it yourself")
    return key


def _state(environ: Mapping[str, str], namespace: str, node: str, worker: str) -> Path:
    """Return the worker's folder: the configured one, or the local controller's default."""
    if folder := environ.get("HALIMEDE_STATE"):
        return Path(folder)
    home = Path(environ.get("HALIMEDE_HOME") or HOME).expanduser()
    return home / "nodes" / node / "workers" / namespace / worker


def _model(environ: Mapping[str, str], *, optional: bool) -> tuple[str, ModelSpec]:
    """Return the model's path, which may be empty if it is optional, and its spec. Raises InvalidFieldError."""
    path = environ.get("MODEL_URL", "") if optional else require(environ, "MODEL_URL")
    return path, read_spec(environ, "MODEL_SPEC", path)


def read_spec(environ: Mapping[str, str], name: str, path: str) -> ModelSpec:
    """Return the spec in the variable ``name`` of the model at ``path``; without the variable that of an ONNX file.

    Raises InvalidFieldError.
    """
    if not environ.get(name):
        return ModelSpec(url=path, format="onnx")
    spec = read_json(environ, name, ModelSpec)
    try:
        check_model(spec)
    except InvalidFieldError as error:
        raise InvalidFieldError(error.field.replace("spec", name, 1), error.value, error.fix) from error
    return spec


def _parameters(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of mining by name. Raises InvalidFieldError."""
    if not environ.get("HEM_PARAMETERS"):
        return {}
    return {parameter.key: parameter.value for parameter in read_json(environ, "HEM_PARAMETERS", list[Parameter])}


def _source(environ: Mapping[str, str], service: str) -> FrameSourceSpec:
    """Return where the frames come from: by default a camera with the service's name. Raises InvalidFieldError."""
    source = read_json(environ, "SOURCE", FrameSourceSpec) if environ.get("SOURCE") else FrameSourceSpec()
    if len(source.kinds) > 1:
        raise InvalidFieldError("SOURCE", environ["SOURCE"], "give one of cameras, path and url")
    if not source.kinds:
        source.cameras = [check_label("SERVICE_NAME", service)]
    return source
