"""Resources as users write them, with what matters to a test; and the newest status of each."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import Condition, Status, StatusDocument
from tests.e2e.running import System


def resource(kind: str, name: str, *, group: str = "sedna.io", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def write_archive(to: Path, members: Mapping[str, bytes]) -> str:
    """Pack files, as a user does with tar; return the digest of the archive."""
    with tarfile.open(to, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return hashlib.sha256(to.read_bytes()).hexdigest()


class Statuses:
    """The newest status of each resource of a kind, by name."""

    def __init__(self) -> None:
        self.documents: dict[str, StatusDocument] = {}

    async def follow(self, system: System, plural: str) -> None:
        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            self.documents[delivery.body.name] = delivery.body

        async def cleared(names: Mapping[str, str]) -> None:
            self.documents.pop(names["name"], None)

        await system.bus.subscribe(topics.STATUS.filter(ns="default", plural=plural), on_status, cleared=cleared)

    def of(self, name: str) -> Status:
        """Return a status; an empty one as long as there is none."""
        return self.documents[name].status if name in self.documents else Status()

    def condition(self, name: str) -> Condition:
        return (self.of(name).conditions or [Condition(type="")])[-1]
