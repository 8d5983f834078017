"""Power over nodes: what an operator cannot do by `kubectl`. Only nodes of our own cluster can be cut off."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.processes import in_namespace, run
from tests.cluster.settings import API_PORT, CONTROL_PLANE, PREFIX

STATE = "HALIMEDE_CLUSTER_STATE"
TABLE = "halimede_cut"
#: of a container's id: 32 bytes in hexadecimal
ID_LENGTH = 64


@dataclass
class Power:
    """The nodes that may be cut off, by name; none on a cluster that somebody lends us."""

    nodes: dict[str, str] = field(default_factory=dict)
    #: the folder of the programs, and the archives of images, with which another node can be started
    binaries: Path | None = None
    images: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Power:
        """Return what the cluster of this machine has written; nothing on another cluster."""
        file = os.environ.get(STATE)
        if not file:
            return cls()
        state = json.loads(Path(file).read_text())
        images = {name: Path(path) for name, path in state["images"].items()}
        return cls(state["nodes"], Path(state["binaries"]), images)

    def need(self, node: str) -> None:
        """Skip the test, unless this node is ours."""
        if node not in self.nodes:
            pytest.skip(
                f"node {node} is not a node of `make test-cluster KUBE_BINARIES=...`: it cannot be cut off from here"
            )

    def kill(self, container: str) -> None:
        """Send SIGKILL to all processes of a container of our nodes, as the kernel does when memory is short.

        ``container``: the ``containerID`` of a pod's status. Raises AssertionError if it has no process here.
        """
        found = list(_processes(container.rpartition("/")[2]))
        assert found, f"{container} has no process on this machine"
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def without_api(self, node: str) -> AbstractContextManager[None]:
        """Drop all packets between a node and the API server during a block; the broker stays reachable."""
        return self._drop(node, [("output", f"ip daddr {CONTROL_PLANE} tcp dport {API_PORT}")])

    def cut(self, node: str) -> AbstractContextManager[None]:
        """Drop all packets of a node and its pods, to and from all others, during a block."""
        hooks = [("output", 'oifname "eth0"'), ("input", 'iifname "eth0"'), ("forward", 'oifname "eth0"')]
        return self._drop(node, hooks)

    @contextmanager
    def _drop(self, node: str, matches: list[tuple[str, str]]) -> Iterator[None]:
        chains = [
            f"  chain {hook} {{\n    type filter hook {hook} priority 0;\n    {match} drop\n  }}"
            for hook, match in matches
        ]
        rules = "\n".join([f"table ip {TABLE} {{", *chains, "}", ""])
        run(*in_namespace(f"{PREFIX}-{node}", "nft", "-f", "-"), stdin=rules)
        try:
            yield
        finally:
            run(*in_namespace(f"{PREFIX}-{node}", "nft", "delete", "table", "ip", TABLE))


def _processes(container: str) -> Iterator[int]:
    """Yield the ids of a container's processes: its id is the last part of their cgroups."""
    assert len(container) == ID_LENGTH, f"not the id of a container: {container!r}"
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if any(line.endswith(f"/{container}") for line in path.read_text().splitlines()):
                yield int(path.parent.name)
