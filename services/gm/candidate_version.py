"""The versions of a Model that a learning loop edits: ``desired_model`` returns the Model as the loop needs it. Pure.

A learning loop trains a candidate for a Model again and again, and compares it with the present version (the base). A
Model lists its versions; the one that workers use is in force. A candidate becomes a version before it is judged, but
is not in force: so GM has its file and its calibration before the workers of the training end. A candidate that was
refused is removed again. All edits follow from the loop's state and from what the Model has, so they may be repeated.
"""

from __future__ import annotations

import msgspec

from halimede.api.learning_loop import LoopSettings
from halimede.api.model import ModelSpec, ModelVersion, RolloutSpec
from halimede.learning_loop.states import LoopState, desired_loop
from halimede.messages import ModelFacts, TensorFile

#: most versions in a Model's spec, and characters of a digest in the name of a version
MAX_SPEC_VERSIONS, SHORT = 64, 12


def undone_reason(loop: LoopState, model: ModelSpec | None) -> str:
    """Return how a user has ended the candidate's trial by an edit of the Model; empty: no user has."""
    if model is None or loop.state not in {"Canary", "RolledOut"} or foreign_version(loop, model):
        return ""
    if not digest_of(loop.version, model):
        return f"the Model has no version {loop.version} any more"
    if loop.tried and model.target_version != loop.version:
        return f"version {model.target_version or loop.base} is in force again"
    return ""


def is_full(loop: LoopState, model: ModelSpec, job: str) -> bool:
    """Whether a Model has no room for another candidate of the training ``job``, and none of its own to replace."""
    needed = {model.target_version or loop.base, loop.base if loop.state != "Collecting" else ""}
    own = (entry for entry in model.versions if entry.version.startswith(f"{job}-") and entry.version not in needed)
    return len(model.versions) >= MAX_SPEC_VERSIONS and not any(own)


def digest_of(version: str, model: ModelSpec | None) -> str:
    """Return the SHA-256 of a Model's version by the version's name; empty: the Model has no such version."""
    return next((entry.sha256 for entry in model.versions if entry.version == version), "") if model else ""


def version_name(job: str, model: TensorFile) -> str:
    """Return the name of the version that a trained model of the training ``job`` becomes, such as ``digits-3f2a``."""
    return f"{job}-{model.digest[:SHORT]}"


def desired_model(
    loop: LoopState,
    spec: ModelSpec,
    settings: LoopSettings,
    candidate: ModelVersion | None,
    file_facts: ModelFacts | None,
    *,
    as_pods: bool,
) -> ModelSpec | None:
    """Return the spec that the Model must have in the loop's state; None: ``spec`` is so already.

    ``candidate``: the version of the trained model; None before all trainers have compared it. ``file_facts``: facts of
    the Model's present file, if known. ``as_pods``: workers are pods, which a change of the Model replaces.
    """
    desired = desired_loop(loop, settings)
    model, rollout = spec, _rollout(loop, spec, desired.audit_share)
    if loop.state == "Labelling" and as_pods:  # a later change of its spec would replace the pods that train
        model = _with_base(spec, loop, file_facts) or spec
    elif desired.judge:
        model = _with_candidate(spec, loop, candidate, file_facts)
    elif desired.canary and not (undone_reason(loop, spec) or foreign_version(loop, spec)):
        model = msgspec.structs.replace(spec, target_version=desired.canary)
        rollout = msgspec.structs.replace(rollout, canary_percent=desired.percent)
    elif desired.withdrawn:
        model = _without(spec, loop)
        if model.target_version != spec.target_version:
            rollout = msgspec.structs.replace(rollout, canary_percent=100)
    if rollout != (spec.rollout or RolloutSpec()) and not as_pods:
        model = msgspec.structs.replace(model, rollout=rollout if rollout != RolloutSpec() else None)
    return model if model != spec else None


def foreign_version(loop: LoopState, spec: ModelSpec | None) -> str:
    """Return the version in force if a user has put it in force since the round of the loop began; else empty."""
    target = spec.target_version if spec else ""
    return target if loop.base and loop.round and target not in {"", loop.base, loop.version} else ""


def _rollout(loop: LoopState, spec: ModelSpec, share: float) -> RolloutSpec:
    """Return the Model's roll-out settings: in a round with at least the share of audits ``share`` (fraction, 0..1).

    An audit is an easy sample that the next tier answers too. After the round, the settings before it return.
    """
    now, before = spec.rollout or RolloutSpec(), loop.restore
    if share:
        return msgspec.structs.replace(now, audit_share=max(now.audit_share, share))
    if before is None:
        return now
    return before if loop.state == "Collecting" else msgspec.structs.replace(now, audit_share=before.audit_share)


def _with_candidate(
    spec: ModelSpec, loop: LoopState, candidate: ModelVersion | None, file_facts: ModelFacts | None
) -> ModelSpec:
    """Return a Model with the candidate as a version, and with the present version in force by its name."""
    if candidate is None or candidate.version != loop.version or digest_of(loop.version, spec):
        return spec
    named = _with_base(spec, loop, file_facts)
    if named is None:
        return spec  # somebody edits the Model: the round ends with Superseded
    # a resource has a limited size: only versions between which the loop chooses keep a calibration
    calibrated = {loop.base, named.target_version}
    versions = [
        old if old.version in calibrated else msgspec.structs.replace(old, calibration="") for old in named.versions
    ]
    own_prefix = candidate.version[:-SHORT]  # the name of the training and a hyphen, without the digest
    own = (old for old in versions if old.version.startswith(own_prefix) and old.version != loop.base)
    while len(versions) >= MAX_SPEC_VERSIONS and (oldest := next(own, None)):
        versions.remove(oldest)
    if len(versions) >= MAX_SPEC_VERSIONS:
        return spec
    return msgspec.structs.replace(named, versions=[*versions, candidate])


def _with_base(spec: ModelSpec, loop: LoopState, file_facts: ModelFacts | None) -> ModelSpec | None:
    """Return a Model with the loop's base in its list and in force; None: its file is not known to be the base."""
    versions = list(spec.versions)
    if not any(version.version == loop.base for version in versions):
        digest = spec.sha256 or (file_facts.digest if file_facts else "")
        if spec.target_version or not spec.url or not loop.base or not digest.startswith(loop.base):
            return None
        versions.append(ModelVersion(version=loop.base, url=spec.url, sha256=digest))
    return msgspec.structs.replace(spec, versions=versions, target_version=spec.target_version or loop.base)


def _without(spec: ModelSpec, loop: LoopState) -> ModelSpec:
    """Return a Model one step nearer to being without the refused candidate: not in force, then not in the list."""
    if not loop.version or not digest_of(loop.version, spec):
        return spec
    if spec.target_version != loop.version:
        versions = [version for version in spec.versions if version.version != loop.version]
        return msgspec.structs.replace(spec, versions=versions)
    if not any(version.version == loop.base for version in spec.versions):
        return spec
    return msgspec.structs.replace(spec, target_version=loop.base)
