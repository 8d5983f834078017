"""The rules of writing: create, replace, patch, delete, and what each of them leaves alone.

Everything here is synchronous, so one request is one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.kubernetes.double import builtin, errors
from tests.kubernetes.double.defaults import begin, carry_over, fill
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.kinds import CRD, NAMESPACE, Kind
from tests.kubernetes.double.names import new_finalizers
from tests.kubernetes.double.store import Store, Version
from tests.kubernetes.double.validation import causes_of, changes_of
from tests.kubernetes.podstates import now

Body = dict[str, Any]
#: the server's own; what clients send of it is ignored on create
_OWN = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


@dataclass(kw_only=True)
class Options:
    """Query parameters of a write."""

    validation: str = "Warn"
    manager: str = "unknown"


class Writer:
    """Changes objects in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, kind: Kind, namespace: str, sent: Body, options: Options) -> Version:
        body = self._decode(kind, sent, options)
        meta = body["metadata"]
        self._agree(kind, meta, namespace)
        if meta.get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        for name in _OWN:
            meta.pop(name, None)
        self._into(kind, namespace, meta.get("name", ""))
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if kind.generation:
            meta["generation"] = 1
        begin(kind, body)
        self._check(kind, body, None)
        if self._store.get(kind.storage, (namespace, meta["name"])) is not None:
            raise errors.already_exists(kind, meta["name"])
        _managed(kind, body, options, "")
        return self._keep(kind, body)

    def update(
        self,
        kind: Kind,
        name: tuple[str, str],
        make: Callable[[Body], Body],
        subresource: str,
        options: Options,
        *,
        replace: bool,
    ) -> Version:
        """Bring an object to what ``make`` returns for its newest state."""
        old = self._store.get(kind.storage, name)
        if old is None:
            raise errors.not_found(kind, name[1])
        sent = make(old.copy())
        if sent.get("metadata", {}).get("name", name[1]) != name[1] or not sent.get("metadata", {}).get("name"):
            other = sent.get("metadata", {}).get("name", "")
            said = f"the name of the object ({other}) does not match the name on the URL ({name[1]})"
            raise errors.bad_request(said)
        body = self._decode_again(kind, sent, options, replace=replace)
        meta = body["metadata"]
        self._agree(kind, meta, name[0])
        self._precede(kind, old, meta, replace=replace)
        if subresource:
            if meta.get("uid") not in {None, old.metadata["uid"]} and not kind.custom:
                raise errors.invalid_object(kind, name[1], [_immutable("uid", meta["uid"])])
            status = body.get("status")
            body = old.copy()
            body.pop("status", None)
            if status is not None:
                body["status"] = status
        else:
            self._settle(kind, old, body)
        self._check(kind, body, old, status_only=bool(subresource))
        if _same(body, old.body):
            return old
        _managed(kind, body, options, subresource)
        return self._keep(kind, body)

    def _settle(self, kind: Kind, old: Version, body: Body) -> None:
        """Carry over what a write to the main resource cannot change, and count the change."""
        meta = body["metadata"]
        if meta.get("uid") not in {None, old.metadata["uid"]}:
            raise errors.invalid_object(kind, meta["name"], [_immutable("uid", meta["uid"])])
        for each in _OWN:
            meta.pop(each, None)
            if each in old.metadata:
                meta[each] = old.metadata[each]
        if kind.status:
            body.pop("status", None)
            if "status" in old.body:
                body["status"] = old.copy()["status"]
        carry_over(kind, old.body, body)
        if causes := new_finalizers(old.metadata, meta):
            raise errors.invalid_object(kind, meta["name"], causes)
        if kind.generation and _counted(kind, body) != _counted(kind, old.body):
            meta["generation"] = old.metadata.get("generation", 0) + 1

    @staticmethod
    def _precede(kind: Kind, old: Version, meta: Body, *, replace: bool) -> None:
        name = old.metadata["name"]
        uid, rv = meta.get("uid"), meta.get("resourceVersion")
        if replace and uid and uid != old.metadata["uid"]:
            said = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.metadata['uid']}"
            raise errors.conflict(kind, name, said)
        if not rv or rv == "0":
            if not kind.unconditional:
                said = "Invalid value: 0x0: must be specified for an update"
                cause = errors.Cause("FieldValueInvalid", "metadata.resourceVersion", said)
                raise errors.invalid_object(kind, name, [cause])
        elif not rv.isdecimal():
            raise errors.invalid_object(kind, name, [errors.invalid("metadata.resourceVersion", rv, "invalid syntax")])
        elif rv != old.metadata["resourceVersion"]:
            raise errors.conflict(kind, name)

    def _keep(self, kind: Kind, body: Body) -> Version:
        meta = body["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        if meta.get("deletionTimestamp") and not _held(kind, body):
            self._store.remove(kind.storage, key, body)
            return Version(body)
        return self._store.put(kind.storage, body)

    def _decode_again(self, kind: Kind, sent: Body, options: Options, *, replace: bool) -> Body:
        try:
            return self._decode(kind, sent, options)
        except ApiError as error:
            if replace or error.code != 400 or kind.custom:
                raise
            # what a patch leads to is refused as the patch's fault
            whole = errors.shown(msgspec.json.encode(sent).decode())
            said = f' "" is invalid: patch: Invalid value: {whole}: {error.message}'
            raise ApiError(422, "Invalid", said, details={}) from error

    def _decode(self, kind: Kind, sent: Body, options: Options) -> Body:
        if not isinstance(sent, dict):
            raise errors.bad_request("the body is not an object")
        said_kind, said_version = sent.get("kind", ""), sent.get("apiVersion", "")
        if kind.custom and not said_kind:
            raise errors.bad_request("Object 'Kind' is missing in the request's body")
        if (said_version or kind.api_version) != kind.api_version:
            expected = f"does not match the expected API version ({kind.api_version})"
            raise errors.bad_request(f"the API version in the data ({said_version}) {expected}")
        if (said_kind or kind.kind) != kind.kind:
            if kind.custom:
                cause = errors.invalid("kind", said_kind, f"must be {kind.kind}")
                raise errors.invalid_object(kind, (sent.get("metadata") or {}).get("name", ""), [cause])
            said = f'{said_kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
            raise errors.bad_request(said)
        if kind.schema is not None:
            body = {**sent, "metadata": sent.get("metadata") or {}}
            dropped = kind.schema.prune(body)
            meta, more = builtin.decode_metadata(kind, body["metadata"])
            body, dropped = {**body, "metadata": meta}, dropped + more
            kind.schema.fill(body)
        else:
            body, dropped = builtin.decode(kind, sent)
            body.setdefault("metadata", {})
            fill(kind, body)
        if dropped and options.validation == "Strict":
            said = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            raise errors.bad_request(said + builtin.unknown_fields(dropped))
        return body

    @staticmethod
    def _agree(kind: Kind, meta: Body, namespace: str) -> None:
        if meta.get("namespace", namespace) != namespace and kind.namespaced:
            said = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(said)
        meta.pop("namespace", None)
        if kind.namespaced:
            meta["namespace"] = namespace

    def _into(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        into = self._store.get(NAMESPACE.storage, ("", namespace))
        if into is None:
            raise errors.not_found(NAMESPACE, namespace)
        if into.metadata.get("deletionTimestamp"):
            said = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
            cause["message"] = f"namespace {namespace} is being terminated"
            details = {"name": name, "kind": kind.plural, "causes": [cause]}
            raise ApiError(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: {said}', details=details)

    @staticmethod
    def _check(kind: Kind, body: Body, old: Version | None, *, status_only: bool = False) -> None:
        name = body["metadata"].get("name", "")
        causes = causes_of(kind, body, old.body if old else None, status_only=status_only)
        if old is not None and not status_only:
            causes += changes_of(kind, old.body, body)
        if causes:
            raise errors.invalid_object(kind, name, causes)


def _immutable(field_: str, value: object) -> errors.Cause:
    return errors.invalid(f"metadata.{field_}", value, "field is immutable")


def _held(kind: Kind, body: Body) -> bool:
    meta = body["metadata"]
    spec_held = kind is NAMESPACE and bool(body.get("spec", {}).get("finalizers"))
    return bool(meta.get("finalizers")) or meta.get("deletionGracePeriodSeconds", 0) > 0 or spec_held


def _counted(kind: Kind, body: Body) -> Any:
    if not kind.custom and kind is not CRD:
        return body.get("spec")
    return {name: value for name, value in body.items() if name not in {"metadata", "apiVersion", "kind"}
            and not (name == "status" and kind.status)}  # fmt: skip


def _same(one: Body, other: Body) -> bool:
    def plain(body: Body) -> Body:
        meta = {k: v for k, v in body["metadata"].items() if k not in {"managedFields", "resourceVersion"}}
        return {**body, "metadata": meta}

    return plain(one) == plain(other)


def _managed(kind: Kind, body: Body, options: Options, subresource: str) -> None:
    """Note who wrote, as large a note as the real server makes of it (not as exact)."""
    written = {"status": body.get("status")} if subresource else {k: v for k, v in body.items() if k != "metadata"}
    entry: Body = {"manager": options.manager, "operation": "Update", "apiVersion": kind.api_version, "time": now()}
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": _fields(written)}
    if subresource:
        entry["subresource"] = subresource
    others = [e for e in body["metadata"].get("managedFields") or []
              if (e.get("manager"), e.get("subresource", "")) != (options.manager, subresource)]  # fmt: skip
    body["metadata"]["managedFields"] = [*others, entry]


def _fields(value: Any) -> Body:
    if not isinstance(value, dict):
        return {}
    return {f"f:{name}": _fields(each) for name, each in value.items() if name not in {"apiVersion", "kind"}}
