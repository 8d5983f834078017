"""``halimede.JointModel`` with its three constructors: from models, from manifests, and as an edge of a service.

Its methods are those of ``Predictor`` (``predict_api``). docs/joint-model.md describes it for users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from halimede.api.processing import DecodeMode
from halimede.bus.mqtt import MqttSettings
from halimede.errors import InvalidFieldError
from halimede.joint_model.predict_api import TIMEOUT_S, Predictor
from halimede.joint_model.tiers import DEFAULT_MINING, Rule, Tier, TierPlan, chain, edge_of, from_manifests, stage
from halimede.names import check_label, check_name
from halimede.worker.settings import BROKER, Fusion, MiningMode

#: default milliseconds that a hard sample may wait for the next tier: in this process, and over a bus
HERE_MS, BUS_MS = 30_000.0, 2_000.0

#: a model: the path of a file, or an object with ``predict``
ModelSource = str | os.PathLike[str] | object


class JointModel(Predictor):
    """A small model that answers, and bigger ones that answer its hard samples: one model for its user.

    It opens at the first sample, or with ``with`` or ``async with``, and is closed at the block's end or by ``close``.
    All methods may be called from any thread, and from any event loop.
    """

    def __init__(
        self,
        edge: ModelSource | Tier,
        cloud: ModelSource | Tier | None = None,
        *,
        tiers: Sequence[ModelSource | Tier] = (),
        mining: str = DEFAULT_MINING,
        parameters: Mapping[str, object] | None = None,
        mode: MiningMode = "inference-then-mining",
        calibration: str | os.PathLike[str] | None = None,
        target_upload_ratio: float | None = None,
        audit_share: float = 0.0,
        fusion: Fusion = "cloud",
        labels: Sequence[str] = (),
        decode: DecodeMode = "exact",
        preprocess: Sequence[Mapping[str, Any]] = (),
        postprocess: Mapping[str, Any] | None = None,
        deadline_ms: float = HERE_MS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Combine models that all run in this process.

        A model is the path of an ONNX file, an estimator (an object or class with ``predict``), a fitted scikit-learn
        classifier, or a ``Tier`` with its own rule and processing. ``tiers`` are between ``edge`` and ``cloud``;
        without a cloud the edge answers alone. ``mining`` to ``fusion`` define when the next tier is requested: they
        are the fields of ``Rule``. ``labels`` to ``postprocess`` apply to all models, as in a Model. ``deadline_ms`` (1
        to 600000) is how long a hard sample may wait for the next tier, ``timeout_s`` how long any call waits.

        Raises InvalidFieldError, naming the argument.
        """
        rule = _rule(
            mining=mining, parameters=parameters or {}, mode=mode, calibration=calibration,
            target_upload_ratio=target_upload_ratio, audit_share=audit_share, fusion=fusion,
        )  # fmt: skip
        if isinstance(tiers, str | os.PathLike):
            raise InvalidFieldError("tiers", str(tiers), "give a list of the models between edge and cloud")
        models = [edge, *tiers, *([] if cloud is None else [cloud])]
        if cloud is None and tiers:
            raise InvalidFieldError("cloud", None, "name the last tier's model as cloud")
        processing = {"labels": labels, "decode": decode, "preprocess": preprocess, "postprocess": postprocess}
        stages = [_as_tier(model, rule, processing) for model in models]
        super().__init__(chain(stages, deadline_s=_deadline(deadline_ms)), None, timeout_s=timeout_s)

    @classmethod
    def from_file(
        cls, manifest: str | os.PathLike[str], *more: str | os.PathLike[str], timeout_s: float = TIMEOUT_S
    ) -> Self:
        """Run a service in this process from its manifest and its Models' (in it, or in the same folder).

        Raises InvalidFieldError, FetchError. Needs the extra ``cli`` for YAML.
        """
        joint_model = cls.__new__(cls)
        Predictor.__init__(joint_model, from_manifests([Path(manifest), *map(Path, more)]), None, timeout_s=timeout_s)
        return joint_model

    @classmethod
    def connect(
        cls,
        service: str,
        *,
        edge: ModelSource | Tier | None = None,
        manifest: str | os.PathLike[str] | None = None,
        broker: str = "",
        credentials: str | os.PathLike[str] = "",
        namespace: str = "default",
        node: str = "sdk",
        mining: str = DEFAULT_MINING,
        parameters: Mapping[str, object] | None = None,
        calibration: str | os.PathLike[str] | None = None,
        target_upload_ratio: float | None = None,
        audit_share: float = 0.0,
        fusion: Fusion = "cloud",
        labels: Sequence[str] = (),
        decode: DecodeMode = "exact",
        preprocess: Sequence[Mapping[str, Any]] = (),
        postprocess: Mapping[str, Any] | None = None,
        next_tier: str = "",
        deadline_ms: float | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Run the small model here, and request the workers of a service over the bus, as its edge workers do.

        The small model and its rule are those of ``edge`` and the arguments after it, or those of a ``manifest``.
        ``broker`` and ``credentials`` default to HALIMEDE_BROKER (else 127.0.0.1:1883) and HALIMEDE_CREDENTIALS; a
        broker with access rules requires those of an edge worker. ``next_tier`` is the requested tier of a service with
        tiers. ``namespace`` is the service's, ``node`` the name of this machine in messages. ``deadline_ms`` None is
        the manifest's, else 2000. While no worker answers, the small model does: answers are then ``degraded``, with a
        reason.

        Raises InvalidFieldError, naming the argument, and FetchError for a model of the manifest.
        """
        check_name("service", service)
        check_label("namespace", namespace)
        check_name("node", node)
        if (edge is None) == (manifest is None):
            raise InvalidFieldError("edge", edge, "give the small model, or a manifest that names it")
        if manifest is not None:
            plan = edge_of(from_manifests([Path(manifest)]))
            deadline = plan.deadline_s if deadline_ms is None else _deadline(deadline_ms)
            plan = replace(plan, service=service, namespace=namespace, deadline_s=deadline)
        else:
            rule = _rule(
                mining=mining, parameters=parameters or {}, calibration=calibration,
                target_upload_ratio=target_upload_ratio, audit_share=audit_share, fusion=fusion,
            )  # fmt: skip
            if next_tier:
                check_label("next_tier", next_tier)
            processing = {"labels": labels, "decode": decode, "preprocess": preprocess, "postprocess": postprocess}
            first = stage(replace(_as_tier(edge, rule, processing), name="edge"), "edge", last=False)
            plan = TierPlan(
                stages=(first,), service=service, namespace=namespace, has_middle_tiers=bool(next_tier),
                next_tier=next_tier, deadline_s=_deadline(BUS_MS if deadline_ms is None else deadline_ms),
            )  # fmt: skip
        credentials_path = str(credentials) or os.environ.get("HALIMEDE_CREDENTIALS", "")
        address = broker or os.environ.get("HALIMEDE_BROKER") or BROKER
        joint_model = cls.__new__(cls)
        settings = MqttSettings.from_url(address, variable="broker", credentials=credentials_path)
        Predictor.__init__(joint_model, plan, settings, timeout_s=timeout_s, node=node)
        return joint_model


def _as_tier(model: ModelSource | Tier, rule: Rule, processing: Mapping[str, Any]) -> Tier:
    """Return a tier as it is, or the tier of a model with this rule and processing (``labels`` to ``postprocess``)."""
    return model if isinstance(model, Tier) else Tier(model=model, rule=rule, **processing)


def _rule(*, parameters: Mapping[str, object], calibration: str | os.PathLike[str] | None, **fields: Any) -> Rule:
    """Return the rule of these arguments, with the absolute path of the calibration."""
    path = Path(calibration).expanduser().resolve() if calibration is not None else None
    return Rule(parameters=dict(parameters), calibration=path, **fields)


def _deadline(ms: float) -> float:
    """Return ``deadline_ms`` in seconds. Raises InvalidFieldError."""
    if not isinstance(ms, int | float) or not 1 <= ms <= 600_000:
        raise InvalidFieldError("deadline_ms", ms, "give 1 to 600000 milliseconds")
    return ms / 1000
