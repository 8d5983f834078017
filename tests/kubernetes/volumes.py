"""What a pod's containers are given: variables, volumes and mounts, as kubelet resolves them on a node."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.client import Body, Client
from tests.kubernetes.sandbox import Mount

_reference = re.compile(r"\$(?:\$|\(([^)]*)\))")
_label = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class NotYetError(Exception):
    """A pod cannot be made ready: a container waits with this reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def expand(text: str, known: Mapping[str, str]) -> str:
    """Put variables in place of ``$(NAME)``; ``$$`` is one ``$``; what is not known stays as it is."""

    def put(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else known.get(found[1], found[0])

    return _reference.sub(put, text)


class Giver:
    """What one pod is given on its node. ``root`` stands for the node's file system, ``folder`` is the pod's own."""

    def __init__(self, client: Client, pod: Body, root: Path, folder: Path) -> None:
        self._client = client
        self._pod = pod
        self._root = root
        self._folder = folder
        self._volumes: dict[str, Path] = {}
        self.address = ""

    @property
    def fs_group(self) -> int | None:
        """Who owns its volumes beside root."""
        group: int | None = self._pod["spec"].get("securityContext", {}).get("fsGroup")
        return group

    async def prepare(self) -> None:
        """Make all volumes. Raises NotYetError."""
        for volume in self._pod["spec"].get("volumes", ()):
            if volume["name"] not in self._volumes:
                self._volumes[volume["name"]] = await self._volume(volume)

    async def _volume(self, volume: Body) -> Path:
        path = self._folder / "volumes" / volume["name"]
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "emptyDir" in volume:
            path.mkdir(parents=True)
            path.chmod(0o777)
            self._own(path, 0o2770)
            return path
        for kind, asked in (("Secret", volume.get("secret")), ("ConfigMap", volume.get("configMap"))):
            if asked is not None:
                data = await self._data(kind, asked.get("secretName") or asked["name"], "FailedMount")
                self._write(path, asked, data)
                return path
        raise NotYetError("FailedMount", f"this kubelet knows no volume like {volume}")

    def _host_path(self, asked: Body) -> Path:
        path = self._root / asked["path"].lstrip("/")
        kind = asked.get("type", "")
        if kind == "DirectoryOrCreate" and not path.exists():
            path.mkdir(parents=True, mode=0o755)
        if not path.exists() or (kind.startswith("Directory") and not path.is_dir()):
            raise NotYetError("FailedMount", f"hostPath type check failed: {asked['path']} is not a directory")
        return path

    def _write(self, path: Path, asked: Body, data: Mapping[str, bytes]) -> None:
        """As kubelet does it: links to a folder that could be replaced as a whole."""
        items = asked.get("items") or [{"key": key, "path": key} for key in data]
        if lacking := [item["key"] for item in items if item["key"] not in data]:
            if not asked.get("optional"):
                raise NotYetError("FailedMount", f"references non-existent key: {lacking[0]}")
            items = [item for item in items if item["key"] in data]
        real = path / "..2026_01_01"
        real.mkdir(parents=True)
        for item in items:
            file = real / item["path"]
            file.write_bytes(data[item["key"]])
            file.chmod(item.get("mode", asked.get("defaultMode", 0o644)))
            self._own(file, 0o440)
            (path / item["path"]).symlink_to(Path("..data", item["path"]))
        (path / "..data").symlink_to(real.name)
        for folder in (path, real):
            folder.chmod(0o755)
            self._own(folder, 0o2770)

    def _own(self, path: Path, more: int) -> None:
        if self.fs_group is not None:
            os.chown(path, -1, self.fs_group)
            path.chmod(path.stat().st_mode | more)

    async def _data(self, kind: str, name: str, reason: str) -> dict[str, bytes]:
        found = await self._client.find(kind, self._pod["metadata"]["namespace"], name)
        if found is None:
            raise NotYetError(reason, f'{kind.lower()} "{name}" not found')
        data = found.get("data") or {}
        return {k: base64.b64decode(v) if kind == "Secret" else v.encode() for k, v in data.items()}

    async def environment(self, container: Body) -> dict[str, str]:
        """Return a container's variables. Raises NotYetError."""
        known: dict[str, str] = {}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom")
            value = await self._from(source) if source else expand(variable.get("value", ""), known)
            if value is not None:
                known[variable["name"]] = value
        return known

    async def _from(self, source: Body) -> str | None:
        if field := source.get("fieldRef"):
            return self._field(field["fieldPath"])
        for kind, asked in (("Secret", source.get("secretKeyRef")), ("ConfigMap", source.get("configMapKeyRef"))):
            if asked is not None:
                try:
                    data = await self._data(kind, asked["name"], "CreateContainerConfigError")
                    if asked["key"] not in data:
                        raise NotYetError("CreateContainerConfigError", f"no key {asked['key']} in {asked['name']}")
                except NotYetError:
                    if asked.get("optional"):
                        return None
                    raise
                return data[asked["key"]].decode()
        raise NotYetError("CreateContainerConfigError", f"this kubelet knows no source like {source}")

    def _field(self, path: str) -> str:
        if found := _label.fullmatch(path):
            return str(self._pod["metadata"].get(found[1], {}).get(found[2], ""))
        if path == "status.podIP":
            return self.address
        value: Any = self._pod
        for level in path.split("."):
            value = value[level]
        return str(value)

    def mounts(self, container: Body, known: Mapping[str, str]) -> list[Mount]:
        """Return a container's mounts, making folders below volumes that are not there yet."""
        found = []
        for mount in container.get("volumeMounts", ()):
            volume = self._volumes[mount["name"]]
            below = expand(mount.get("subPathExpr", ""), known) or mount.get("subPath", "")
            source = volume / below
            if below and not source.exists():
                made = [folder for folder in (source, *source.parents) if not folder.exists()]
                source.mkdir(parents=True)
                for folder in made:
                    folder.chmod(volume.stat().st_mode & 0o7777)
            found.append(Mount(source=source, path=mount["mountPath"], read_only=mount.get("readOnly", False)))
        return found
