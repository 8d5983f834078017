"""Resources, statuses, events, reports and nodes in SQLite (``ResourceStore``), edited by Kubernetes' rules.

The resource version changes with each edit by the user, the generation with each edit of ``spec``, the uid with each
re-creation. Writing a status changes none of them, so that a user's edit never conflicts with GM's counts. An edit that
is based on another resource version is refused (ConflictError). ``LocalCluster`` uses the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import structlog

from halimede.api import Resource, parse
from halimede.errors import InvalidFieldError
from halimede.messages import Event, NodeStatus, Presence, ResourceBody, Status
from halimede.names import Key
from services.gm.cluster.port import (
    Applied,
    ConflictError,
    EventType,
    LostVersion,
    Memory,
    NodeReport,
    Outcome,
    StoredResource,
    UnknownResourceError,
    utc_now,
)
from services.gm.cluster.sqlite_file import Database, StoreError

log = structlog.get_logger()
T = TypeVar("T")

#: most events that are kept
MAX_EVENTS = 5000
#: most remembered deletions: if a node was away for more of them, a user must delete what it still holds
MAX_TOMBSTONES = 100_000
#: number of events by which the table may exceed ``MAX_EVENTS``: they are not counted at each write
EVENT_SLACK = 100
#: fields of the metadata that only the server sets; an edit may have ``resourceVersion``, the one that it is based on
SERVER_SET = frozenset({
    "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "selfLink", "managedFields",
})  # fmt: skip


class ResourceStore:
    """The tables of an open database. Each public method that writes is one transaction, except for ``refill``.

    All raise StoreError if the file fails.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._events_added = 0

    # --- resources --------------------------------------------------------------------------------------------

    def load(self) -> list[StoredResource]:
        """Return all resources with their statuses. Raises StoreError if one cannot be read, and drops none."""
        rows = self._db.read("SELECT namespace, plural, name, body, status FROM resources")
        return [self._read(*row) for row in rows]

    def refill(self, resources: Iterable[StoredResource], drained: Iterable[str]) -> None:
        """Write resources, drained nodes, epoch, identity and secret into a new file, in the caller's transaction."""
        db, last = self._db.connection, 0
        for stored in resources:
            self._write(stored)
            last = max(last, int(stored.resource_version))
        db.execute(
            "INSERT INTO meta VALUES ('version', ?) ON CONFLICT (key) DO UPDATE SET value = max(value, ?)", (last, last)
        )
        db.execute("DELETE FROM drained")
        db.executemany("INSERT INTO drained VALUES (?)", [(node,) for node in drained])
        self._db.write_meta()

    def apply(
        self, existing: StoredResource | None, resource: Resource[Any], lost: LostVersion | None = None
    ) -> Applied:
        """Create a resource (``existing`` None) or edit it; the same content again writes nothing.

        The resource continues the uid of ``lost``, with a higher generation, because nodes may hold another spec: so it
        is written with the same content, too. Raises ConflictError as ``outcome_of`` does.
        """
        outcome = outcome_of(existing, resource, lost)
        content = _user_part(resource.body)
        if existing is None:
            before = lost or LostVersion(str(uuid.uuid4()), 0)
            uid, generation, created, status = before.uid, before.generation + 1, utc_now(), None
        elif outcome == "unchanged":
            return Applied(outcome, existing)
        else:
            old, has_new_spec = existing.resource.metadata, content["spec"] != existing.resource.body["spec"]
            uid, created, status = old.uid, old.creation_timestamp or utc_now(), existing.status
            generation = max(old.generation + has_new_spec, lost.generation + 1 if lost else 0)
        with self._db.transaction(durable=True):
            server_set = {"uid": uid, "generation": generation, "creationTimestamp": created}
            metadata = {**content["metadata"], **server_set, "resourceVersion": self._next_version()}
            stored = StoredResource(parse({**content, "metadata": metadata}), status)
            self._write(stored)
        return Applied(outcome, stored)

    def mark_deleted(self, existing: StoredResource) -> StoredResource:
        """Set the deletion time of a resource, unless it has one; return the resource with it."""
        if existing.deleting:
            return existing
        with self._db.transaction(durable=True):
            body = existing.resource.body
            metadata = {**body["metadata"], "deletionTimestamp": utc_now(), "resourceVersion": self._next_version()}
            stored = StoredResource(parse({**body, "metadata": metadata}), existing.status)
            self._write(stored)
        return stored

    def remove(self, key: Key, uid: str, generation: int) -> None:
        """Drop a resource and the nodes' reports on it; ``generation``: its last one, for nodes that still hold it."""
        with self._db.transaction(durable=True) as db:
            db.execute(
                "DELETE FROM resources WHERE plural = ? AND namespace = ? AND name = ?",
                (key.plural, key.namespace, key.name),
            )
            db.execute("DELETE FROM reports WHERE uid = ?", (uid,))
            self._bury(uid, generation)

    def bury(self, uid: str, generation: int) -> None:
        """Store that a uid was deleted up to a generation, for nodes that are offline; nothing if no store was lost."""
        with self._db.transaction(durable=True):
            self._bury(uid, generation)

    def deleted_generation(self, uid: str) -> int | None:
        """Return the last generation of a deleted uid; None: its deletion is not stored."""
        rows = self._db.read("SELECT generation FROM tombstones WHERE uid = ?", (uid,))
        return rows[0][0] if rows else None

    def _bury(self, uid: str, generation: int) -> None:
        """Store that a uid was deleted, in the caller's transaction; nothing if no store was lost."""
        if not self._db.lost:
            return  # whatever is not here was deleted
        db = self._db.connection
        db.execute("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (uid, generation))
        db.execute("DELETE FROM tombstones WHERE rowid <= (SELECT max(rowid) FROM tombstones) - ?", (MAX_TOMBSTONES,))

    def write_statuses(self, statuses: Mapping[Key, Status]) -> None:
        """Replace the statuses of resources that exist."""
        with self._db.transaction() as db:
            db.executemany(
                "UPDATE resources SET status = ? WHERE plural = ? AND namespace = ? AND name = ?",
                [(msgspec.json.encode(status), *_parts(key)) for key, status in statuses.items()],
            )

    def _next_version(self) -> str:
        """Return a resource version that was never used before, in the caller's transaction."""
        row = self._db.connection.execute(
            "INSERT INTO meta VALUES ('version', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value"
        ).fetchone()
        return str(row[0])

    def _write(self, stored: StoredResource) -> None:
        """Write a resource and its status, in the caller's transaction."""
        key = stored.key
        self._db.connection.execute(
            "INSERT INTO resources VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (plural, namespace, name) DO UPDATE SET body = excluded.body, status = excluded.status",
            (
                key.plural,
                key.namespace,
                key.name,
                msgspec.json.encode(stored.resource.body),
                msgspec.json.encode(stored.status) if stored.status else None,
            ),
        )

    def _read(self, namespace: str, plural: str, name: str, body: bytes, status: bytes | None) -> StoredResource:
        """Return the resource of a row (JSON). Raises StoreError if this version cannot read it."""
        try:
            resource = parse(msgspec.json.decode(body))
            return StoredResource(resource, msgspec.json.decode(status, type=Status) if status else None)
        except (InvalidFieldError, msgspec.DecodeError) as error:
            raise StoreError(
                f"this version cannot read {namespace}/{plural}/{name} in the store {self._db.path} ({error}):"
                " start the version that wrote it, and delete it with that version"
            ) from error

    # --- events -----------------------------------------------------------------------------------------------

    def add_event(self, type_: EventType, reason: str, about: str, message: str, *, times: int = 1) -> None:
        """Add an event about an object, as the newest one; remove the oldest events above ``MAX_EVENTS`` now and then.

        If it repeats the object's latest event, it replaces that one, and its count is the sum of both. ``times``:
        number of events that this one stands for.
        """
        with self._db.transaction() as db:
            last = db.execute(
                "SELECT sequence, type, reason, message, count FROM events WHERE about = ?"
                " ORDER BY sequence DESC LIMIT 1",
                (about,),
            ).fetchone()
            count = times
            if last and last[1:4] == (type_, reason, message):
                db.execute("DELETE FROM events WHERE sequence = ?", (last[0],))
                count = last[4] + times
            db.execute(
                "INSERT INTO events (time, type, reason, about, message, count) VALUES (?, ?, ?, ?, ?, ?)",
                (utc_now(), type_, reason, about, message, count),
            )
            self._events_added += 1
            if self._events_added % EVENT_SLACK == 0:
                db.execute(
                    "DELETE FROM events WHERE sequence <="
                    " (SELECT sequence FROM events ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
                    (MAX_EVENTS,),
                )

    def events(self, after: int, about: str, limit: int, before: int = 0) -> list[Event]:
        """Return the newest ``limit`` events about an object (empty: about all), oldest first.

        Their sequence numbers are above ``after``, and below ``before`` unless that is 0.
        """
        rows = self._db.read(
            "SELECT sequence, time, type, reason, about, message, count FROM events"
            " WHERE sequence > ? AND (? = 0 OR sequence < ?) AND (? = '' OR about = ?) ORDER BY sequence DESC LIMIT ?",
            (after, before, before, about, about, limit),
        )
        return [
            Event(sequence=s, time=t, type=kind, reason=reason, about=subject, message=message, count=count)
            for s, t, kind, reason, subject, message, count in reversed(rows)
        ]

    # --- memory -----------------------------------------------------------------------------------------------

    def remember(self, reports: Iterable[NodeReport], nodes: Iterable[Presence]) -> None:
        """Store reports and nodes' presences in place of earlier ones."""
        with self._db.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (r.status.uid, r.node, *_parts(r.key), r.live, r.edge, msgspec.json.encode(r.status))
                    for r in reports
                ],
            )
            db.executemany(
                "INSERT OR REPLACE INTO nodes VALUES (?, ?)", [(node.node, msgspec.json.encode(node)) for node in nodes]
            )

    def forget_node(self, node: str) -> None:
        """Drop the stored reports, presence and drain mark of a node."""
        with self._db.transaction() as db:
            db.execute("DELETE FROM reports WHERE node = ?", (node,))
            db.execute("DELETE FROM nodes WHERE name = ?", (node,))
            db.execute("DELETE FROM drained WHERE name = ?", (node,))

    def mark_drained(self, node: str, *, drained: bool) -> None:
        """Store whether a user has drained a node."""
        statement = "INSERT OR IGNORE INTO drained VALUES (?)" if drained else "DELETE FROM drained WHERE name = ?"
        with self._db.transaction(durable=True) as db:
            db.execute(statement, (node,))

    def recall(self) -> Memory:
        """Return the stored reports and nodes, without rows that this version cannot read: nodes send them again."""
        read = self._db.read
        reports = [
            NodeReport(Key(plural, namespace, name), node, status, bool(live), bool(edge))
            for plural, namespace, name, node, live, edge, body in read(
                "SELECT plural, namespace, name, node, live, edge, body FROM reports"
            )
            if (status := _readable(body, NodeStatus, node))
        ]
        nodes = read("SELECT name, body FROM nodes")
        presences = [presence for name, body in nodes if (presence := _readable(body, Presence, name))]
        drained = frozenset(name for (name,) in read("SELECT name FROM drained"))
        return Memory(tuple(reports), tuple(presences), drained)


def require(stored: StoredResource | None, key: Key) -> StoredResource:
    """Return the resource; raise UnknownResourceError if there is none."""
    if stored is None:
        raise UnknownResourceError(key)
    return stored


def _readable(body: bytes, kind: type[T], node: str) -> T | None:
    """Return a stored message (JSON); None, and a log line, if this version cannot read it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        log.warning("stored report not readable", node=node, error=str(error))
        return None


def outcome_of(existing: StoredResource | None, resource: Resource[Any], lost: LostVersion | None = None) -> Outcome:
    """Return what applying a resource does to the stored one (None: there is none).

    With ``lost``, a version that only nodes hold, the same content is a change, too.

    Raises ConflictError if the stored one is being deleted or of another API group, or if the resource is based on
    another version of it, or on a version while there is none.
    """
    key, version = resource.key, resource.metadata.resource_version
    if existing is None:
        if version:
            raise ConflictError(f"{key} is gone: remove metadata.resourceVersion to create it")
        return "created"
    if existing.resource.kind.api_version != resource.kind.api_version:
        raise ConflictError(
            f"NameConflict: {key} exists as {existing.resource.kind.api_version} {existing.resource.kind.kind}, and"
            f" {resource.kind.api_version} shares its topics: delete that one first, or choose another name"
        )
    if existing.deleting:
        raise ConflictError(f"{key} is being deleted: apply it again once it is gone")
    # before the check of the version: a client may repeat an edit whose reply was lost
    if _user_part(resource.body) == _user_part(existing.resource.body):
        return "configured" if lost else "unchanged"
    if version and version != existing.resource_version:
        raise ConflictError(
            f"{key} has changed (resourceVersion {existing.resource_version}, not {version}): get it again, or leave"
            " resourceVersion out to overwrite"
        )
    return "configured"


def _user_part(body: ResourceBody) -> ResourceBody:
    """Return the fields that the user wrote: without status and server-set fields, with the default namespace."""
    metadata = {k: v for k, v in body["metadata"].items() if k not in SERVER_SET}
    metadata.setdefault("namespace", "default")
    return {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata, "spec": body["spec"]}


def _parts(key: Key) -> tuple[str, str, str]:
    """Return the values of the columns that name a resource."""
    return key.plural, key.namespace, key.name
