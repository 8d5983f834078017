"""Sedna's JointInference and BigModelService, connected by the bus instead of HTTP.

``JointInference.inference`` runs the small model here, and requests the answers to hard samples from the cloud workers
of its service, which are scripts or halimede's own. Without a cloud, the edge's answer is returned: in Sedna after 12
seconds a frame, here after at most the deadline (``deadlineMs``), and at once as soon as the cloud is known to be down.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NoReturn

import structlog

from halimede import log as logging
from halimede.bus.mqtt import MqttSettings
from halimede.compat.sedna import environment
from halimede.compat.sedna.algorithms.hard_example_mining.hard_example_mining import Mined
from halimede.compat.sedna.call_codec import read_answer, write_call
from halimede.compat.sedna.cloud_client import CloudClient
from halimede.compat.sedna.common.class_factory import ClassFactory, ClassType, post_processing
from halimede.compat.sedna.core.base import JobBase, model_path
from halimede.compat.sedna.serving import worker_arguments
from halimede.errors import InvalidFieldError, describe_exception
from halimede.inference.estimator import load_instance
from halimede.messages import Count
from halimede.mining import Verdict, create
from halimede.models.desired_state import read as read_desired
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.stats.ledger import Latency
from halimede.worker.main import connect_to, leave, main
from halimede.worker.settings import MiningMode, WorkerSettings

__all__ = ("BigModelService", "JointInference", "TSBigModelService")
log = structlog.get_logger()
#: when mining judges a sample: by the edge's answer, or before any model
THEN_MINING: MiningMode = "inference-then-mining"
THEN_INFERENCE: MiningMode = "mining-then-inference"
#: the verdict without a rule
EASY = Verdict(hard=False)
#: Sedna's default method
DEFAULT = "IBT"
#: texts of parameters that are true or false
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


class BigModelService(JobBase):
    """The cloud worker of a service, with the script's estimator as its model.

    ``estimator``: a class or an instance with ``load`` and ``predict``. ``config``: an object with the attributes of
    ``BaseConfig``, such as ``service_name``; None: the values of the environment.
    """

    def start(self) -> None:
        """Load the model and answer until SIGTERM or SIGINT. Exits with code 2 after a mistake of the user.

        Raises InvalidFieldError outside of the main thread.
        """
        environment.check_main_thread("BigModelService.start")
        leave(main("cloud", *worker_arguments(self)))

    def load(self, path: str) -> None:
        """Make the estimator and let it load the model from ``path``. Raises ModelError."""
        self.estimator = load_instance(self.estimator, model_path(self.estimator, path))

    def train(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError: joint inference has no training, in Sedna neither."""
        raise NotImplementedError("joint inference trains nothing: train elsewhere, and bring the model as a Model")

    def inference(self, data: Any = None, post_process: Any = None, **kwargs: Any) -> Any:
        """Return the big model's answer to one sample, post-processed by a callable or a registered alias.

        ``kwargs`` go to the estimator's ``predict``. Raises its errors.
        """
        process = post_processing(post_process)
        answer = self.estimator.predict(data, **kwargs)
        return process(answer) if process else answer


#: its name in older scripts
TSBigModelService = BigModelService


class JointInference(JobBase):
    """The edge worker of a service, driven by the script that calls ``inference``.

    ``estimator``: the small model, a class or an instance with ``load`` and ``predict``. ``hard_example_mining`` is
    ``{"method": name, "param": {...}}``: a rule of halimede, or a class that was registered under ClassType.HEM;
    without one, HEM_NAME of the environment applies. ``cloud``: an object to use instead of the cloud workers; its
    ``inference`` returns the answer, or a dict with it under ``result``. ``config``: as of ``BigModelService``.

    Raises InvalidFieldError and ModelError for mistakes. Those that are noticed after it has connected are reported to
    the local controller as well.
    """

    def __init__(
        self,
        estimator: Any = None,
        hard_example_mining: Mapping[str, Any] | None = None,
        cloud: Any = None,
        config: Any = None,
    ) -> None:
        super().__init__(estimator, config)
        if estimator is None:
            raise InvalidFieldError("estimator", None, "give a class or an instance with load and predict")
        self.cloud = cloud
        self._settings = None if environment.is_alone(os.environ) else environment.settings("edge")
        self._bus = self._open(self._settings) if self._settings else None
        try:
            self.estimator = load_instance(estimator, model_path(estimator, _model_path(self._settings)))
            #: the rule, None without one: then no sample is hard
            self.hard_example_mining_algorithm = self._rule(hard_example_mining)
        except Exception as error:
            self.close(error)
            raise
        if self._bus:
            self._bus.report_running()

    @classmethod
    def get_hem_algorithm_from_config(cls, **param: Any) -> dict[str, Any]:
        """Return ``hard_example_mining`` from HEM_NAME and HEM_PARAMETERS; ``param`` overrides them.

        Empty if no rule is named. Raises InvalidFieldError for invalid parameters.
        """
        name = cls.get_parameters("HEM_NAME")
        if not name:
            return {}
        text = cls.get_parameters("HEM_PARAMETERS") or "[]"
        try:
            settings = {entry["key"]: entry.get("value", "") for entry in json.loads(text)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            fix = 'write a JSON list of {"key": ..., "value": ...}'
            raise InvalidFieldError("HEM_PARAMETERS", text, fix) from error
        return {"method": name, "param": {**settings, **param}}

    def inference(self, data: Any = None, post_process: Any = None, **kwargs: Any) -> list[Any]:
        """Answer one sample: ``[is_hard, final, edge_result, cloud_result]``.

        ``final`` is the cloud's answer if there is one, else the edge's, post-processed by ``post_process`` (a
        callable, or the alias of a registered one). ``edge_result`` is the edge's as the estimator returned it;
        None if mining precedes inference and the cloud answered. ``mining_mode`` overrides MINING_MODE for this call;
        other keyword arguments go to ``predict``, here and in the cloud.

        Raises the errors of the edge's estimator and of ``post_process``. Raises InvalidFieldError for a hard sample
        that the bus cannot carry: ``data`` may be an array of numbers, text, bytes, a number, None, or lists and dicts
        of these.
        """
        mode = self._mode(kwargs.pop("mining_mode", None))
        process = post_processing(post_process)
        counts: dict[Count, int] = dict.fromkeys((Count.ACCEPTED, Count.ANSWERED), 1)
        latencies: dict[Latency, float] = {}

        def at_the_edge() -> tuple[Any, Any]:
            """Return the small model's answer after post-processing, and before it."""
            began = time.monotonic()
            answer = self.estimator.predict(data, **kwargs)
            raw = deepcopy(answer)
            final = process(answer) if process else answer
            latencies[Latency.EDGE] = (time.monotonic() - began) * 1000
            return final, raw

        final = edge = cloud = None
        if mode == THEN_MINING:
            final, edge = at_the_edge()
        verdict = self._judge(final if mode == THEN_MINING else data)
        if verdict.hard:
            counts[Count.HARD] = 1
            answers = self._ask(data, post_process, kwargs, counts, latencies)
            if answers is not None:
                (cloud,) = answers
                final = cloud
        if edge is None and cloud is None and mode == THEN_INFERENCE:
            final, edge = at_the_edge()
        counts[Count.MINING_ERRORS] = int(verdict.error is not None)
        counts[Count.DEGRADED] = int(verdict.hard and Count.CLOUD not in counts)
        if self._bus:
            self._bus.count(counts, latencies)
        return [verdict.hard, final, edge, cloud]

    def train(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError: joint inference has no training, in Sedna neither."""
        raise NotImplementedError("joint inference trains nothing: train elsewhere, and bring the model as a Model")

    def close(self, error: Exception | None = None) -> None:
        """Report to the local controller that the script has stopped, or failed with ``error``.

        Called at exit by itself.
        """
        if self._bus:
            self._bus.close(error)

    def _open(self, settings: WorkerSettings) -> CloudClient:
        """Return the connection to the cloud workers, opened."""
        broker = MqttSettings.from_url(settings.broker, credentials=settings.credentials)
        names = {"node": settings.node, "service": f"{settings.namespace}/{settings.service}"}
        logging.configure(**names, worker=settings.worker)
        if ignored := [name for name, value in _unsupported_settings(settings).items() if value]:
            log.warning("budget and audits not applied to a script", not_held=ignored)
        bus = CloudClient(settings, connect_to(broker, settings.node))
        bus.open()
        _stop_in_order()
        return bus

    def _rule(self, config: Mapping[str, Any] | None) -> Mined | Own | None:
        """Return the mining rule, None without one: then no sample is hard."""
        chosen = config or self.get_hem_algorithm_from_config()
        if not chosen:
            log.warning("hard example mining not configured: no sample goes to the cloud")
            return None
        return rule_of(chosen, self._settings.calibration if self._settings else None)

    def _judge(self, what: Any) -> Verdict:
        """Return the verdict on an answer, or on a sample before any model."""
        verdict = self.hard_example_mining_algorithm.judge(what) if self.hard_example_mining_algorithm else EASY
        if verdict.error is not None:
            log.warning("mining failed, the sample counts as hard", error=verdict.error[:256])
        return verdict

    def _mode(self, override: str | None) -> str:
        """Return when mining judges a sample. Raises InvalidFieldError."""
        mode = override or self.get_parameters("MINING_MODE") or THEN_MINING
        if mode not in {THEN_MINING, THEN_INFERENCE}:
            raise InvalidFieldError("mining_mode", mode, f"write {THEN_MINING} or {THEN_INFERENCE}")
        return str(mode)

    def _ask(
        self,
        data: Any,
        post_process: Any,
        kwargs: dict[str, Any],
        counts: dict[Count, int],
        latencies: dict[Latency, float],
    ) -> tuple[Any] | None:
        """Return the cloud's answer in a tuple (it may be None), None without one; record counts and times."""
        if self.cloud is not None:
            answer = self.cloud.inference(data, post_process=post_process, **kwargs)
            counts[Count.CLOUD] = 1
            return (answer["result"] if isinstance(answer, dict) and "result" in answer else answer,)
        if self._bus is None:
            return None
        by_name = None if callable(post_process) else post_process
        frame = write_call(data, kwargs, by_name)
        began = time.monotonic()
        try:
            reply = self._bus.ask(frame)
        except OffloadError as error:
            sent = error.sent
            if error.reason == OffloadReason.ERROR:
                log.warning("cloud failed on a sample", error=error.detail[:256])
            reply = None
        else:
            sent = True
            latencies[Latency.OFFLOAD] = (time.monotonic() - began) * 1000
            counts[Count.CLOUD] = 1
        counts[Count.UPLOADED] = int(sent)
        counts[Count.UPLOADED_BYTES] = frame.data.nbytes if sent else 0
        if reply is None or reply.prediction is None:
            return None
        answer = read_answer(reply.prediction)
        return (post_process(answer) if callable(post_process) else answer,)


def _model_path(settings: WorkerSettings | None) -> str:
    """Return the model's path: of the desired-state file, if there is one, else the environment's."""
    if settings is None:
        return ""
    desired = read_desired(settings.model_file, "MODEL_FILE") if settings.model_file else None
    return desired.models[0].path if desired and len(desired.models) == 1 else settings.model_path


def _unsupported_settings(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings of edge workers that a script does not support."""
    return {
        "targetUploadRatio": settings.target_upload_ratio,
        "auditShare": settings.audit_share,
        "fusion": settings.fusion == "mixture",
        "keepHardSamples": settings.keep,
        "source": settings.source.path or settings.source.url,
    }


def _stop_in_order() -> None:
    """Make SIGTERM end the script as ``sys.exit`` does, with the final report, unless it has its own handler."""
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


class Own:
    """A rule that the script has registered, with the methods of ``Mined``."""

    def __init__(self, algorithm: Callable[..., Any]) -> None:
        self.algorithm = algorithm

    def judge(self, infer_result: Any, /) -> Verdict:
        """Return the verdict of the script's rule; any error of it makes the sample hard."""
        try:
            return Verdict(hard=bool(self.algorithm(infer_result)))
        except Exception as error:  # noqa: BLE001  # a user's algorithm; inference continues without it
            return Verdict(hard=True, error=describe_exception(error))

    def __call__(self, infer_result: Any = None) -> bool:
        """Whether the sample is hard."""
        return self.judge(infer_result).hard


def rule_of(chosen: Mapping[str, Any], calibration: Path | None = None) -> Mined | Own:
    """Return the rule that ``{"method": name, "param": {...}}`` names, registered by the script or of halimede.

    ``calibration``: the file for a rule that needs one. Raises InvalidFieldError for an unknown name or parameters that
    the rule refuses.
    """
    name, parameters = chosen.get("method") or DEFAULT, chosen.get("param") or {}
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise InvalidFieldError("hard_example_mining", dict(chosen), 'give {"method": name, "param": {...}}')
    if not ClassFactory.is_exists(ClassType.HEM, name):
        return Mined(create(name, parameters, calibration))
    registered = ClassFactory.get_cls(ClassType.HEM, name)
    try:
        rule = registered(**_cast(registered, parameters))
    except TypeError as error:
        raise InvalidFieldError("hard_example_mining.param", dict(parameters), f"{name} refuses it: {error}") from error
    return rule if isinstance(rule, Mined) else Own(rule)


def _cast(registered: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters for a constructor: text becomes a number if the default is one. Raises InvalidFieldError."""
    if issubclass(registered, Mined) if inspect.isclass(registered) else False:
        return dict(parameters)  # it parses text itself
    try:
        params = inspect.signature(registered).parameters
    except (TypeError, ValueError):
        params = {}  # type: ignore[assignment]  # no signature is available
    return {
        key: _convert_text(key, value, params[key].default) if key in params else value
        for key, value in parameters.items()
    }


def _convert_text(key: str, value: Any, default: Any) -> Any:
    """Return text as a value of the type of ``default``, if that is a number or a bool; other values unchanged.

    Raises InvalidFieldError, which names ``key``, for text that is no such value.
    """
    if not isinstance(value, str) or not isinstance(default, bool | int | float):
        return value
    try:
        return TRUTHS[value.strip().lower()] if isinstance(default, bool) else type(default)(value)
    except (KeyError, ValueError) as error:
        fix = f"give {'true or false' if isinstance(default, bool) else 'a number'}, as {default} is"
        raise InvalidFieldError(f"hard_example_mining.param.{key}", value, fix) from error
