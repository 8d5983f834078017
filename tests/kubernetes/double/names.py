"""Which names, labels and annotations the API server accepts, and its words for those that it does not."""

from __future__ import annotations

import re
from typing import Any

from tests.kubernetes.double.errors import Cause, forbidden, invalid

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_LABEL}(\\.{_LABEL})*')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    f"and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '{_1035}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
ANNOTATIONS = 256 * 1024


def _problem(text: str, pattern: str, longest: int, said: str) -> str | None:
    if len(text) > longest:
        return f"must be no more than {longest} characters"
    return None if re.fullmatch(pattern, text, re.ASCII) else said


def subdomain_problem(text: str) -> str | None:
    """Say what is wrong with a DNS-1123 subdomain (most objects' names)."""
    return _problem(text, rf"{_LABEL}(\.{_LABEL})*", 253, _SUBDOMAIN_TEXT)


def label_problem(text: str) -> str | None:
    """Say what is wrong with a DNS-1123 label (namespaces, containers)."""
    return _problem(text, _LABEL, 63, _LABEL_TEXT)


def service_problem(text: str) -> str | None:
    """Say what is wrong with a DNS-1035 label (services)."""
    return _problem(text, _1035, 63, _1035_TEXT)


def segment_problem(text: str) -> str | None:
    """Say what is wrong with a name that only has to fit into a path (RBAC)."""
    if text in {".", ".."}:
        return f"may not be '{text}'"
    bad = next((char for char in "/%" if char in text), None)
    return f"may not contain '{bad}'" if bad else None


def label_value_problem(text: str) -> str | None:
    return _problem(text, rf"({_QUALIFIED})?", 63, _VALUE_TEXT)


def label_key_problem(text: str) -> str | None:
    """Say what is wrong with a label's key, with or without a prefix."""
    prefix, slash, name = text.rpartition("/")
    if slash and (not prefix or subdomain_problem(prefix)):
        return f"prefix part {subdomain_problem(prefix) or 'must be non-empty'}"
    if not name:
        return "name part must be non-empty"
    problem = _problem(name, _QUALIFIED, 63, _KEY_TEXT)
    return f"name part {problem}" if problem and problem.startswith("must") else problem


def label_causes(labels: object, field: str) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in (labels if isinstance(labels, dict) else {}).items():
        if problem := label_key_problem(key):
            causes.append(invalid(field, key, problem))
        if problem := label_value_problem(value):
            causes.append(invalid(field, value, problem))
    return causes


def metadata_causes(meta: dict[str, Any], field: str = "metadata") -> list[Cause]:
    """Check labels, annotations, owners and finalizers."""
    causes = label_causes(meta.get("labels"), f"{field}.labels")
    annotations: dict[str, str] = meta.get("annotations") or {}
    for key in annotations:
        if problem := label_key_problem(key.lower()):
            causes.append(invalid(f"{field}.annotations", key, problem))
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATIONS:
        said = f"Too long: may not be more than {ANNOTATIONS} bytes"
        causes.append(Cause("FieldValueTooLong", f"{field}.annotations", said))
    controllers = []
    for owner in meta.get("ownerReferences") or []:
        for each, said in (("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")):
            if not owner.get(each):
                causes.append(invalid(f"{field}.ownerReferences.{each}", "", f"{said} must not be empty"))
        if owner.get("controller"):
            controllers.append(owner)
    if len(controllers) > 1:
        causes.append(invalid(f"{field}.ownerReferences", "[]", "Only one reference can have Controller set to true"))
    for finalizer in meta.get("finalizers") or []:
        if problem := label_key_problem(finalizer):
            causes.append(invalid(f"{field}.finalizers", finalizer, problem))
        elif "/" not in finalizer and finalizer not in {"orphan", "foregroundDeletion", "kubernetes"}:
            said = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid(f"{field}.finalizers", finalizer, said))
    return causes


def new_finalizers(old: dict[str, Any], new: dict[str, Any]) -> list[Cause]:
    """An object that is being deleted takes no more finalizers."""
    added = [each for each in new.get("finalizers") or [] if each not in (old.get("finalizers") or [])]
    if not old.get("deletionTimestamp") or not added:
        return []
    listed = ", ".join(f'"{each}"' for each in added)
    said = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
    return [forbidden("metadata.finalizers", said)]
