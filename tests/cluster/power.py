"""Power over nodes: what an operator cannot do by `kubectl`. Only nodes of our own cluster can be cut off."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.processes import in_namespace, run
from tests.cluster.settings import API_PORT, CONTROL_PLANE, PREFIX

STATE = "HALIMEDE_CLUSTER_STATE"
TABLE = "halimede_cut"


@dataclass
class Power:
    """The nodes that may be cut off, by name; none on a cluster that somebody lends us."""

    nodes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Power:
        """Return what the environment tells."""
        file = os.environ.get(STATE)
        return cls(json.loads(Path(file).read_text())["nodes"] if file else {})

    def need(self, node: str) -> None:
        """Skip the test, unless this node is ours."""
        if node not in self.nodes:
            pytest.skip(f"node {node} is not a node of `make test-cluster KUBE_BINARIES=...`: it cannot be cut off from here")

    def cut_api(self, node: str) -> None:
        """Drop all packets between a node and the API server; the broker stays reachable."""
        rules = (
            f"table ip {TABLE} {{ chain out {{ type filter hook output priority 0; "
            f"ip daddr {CONTROL_PLANE} tcp dport {API_PORT} drop; }} }}"
        )
        run(*in_namespace(f"{PREFIX}-{node}", "nft", "-f", "-"), stdin=rules)

    def cut(self, node: str) -> None:
        """Drop all packets of a node and its pods, to and from all others."""
        chains = " ".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; {way} \"eth0\" drop; }}"
            for hook, way in (("output", "oifname"), ("input", "iifname"), ("forward", "oifname"))
        )
        run(*in_namespace(f"{PREFIX}-{node}", "nft", "-f", "-"), stdin=f"table ip {TABLE} {{ {chains} }}")

    def heal(self, node: str) -> None:
        """End a cut."""
        run(*in_namespace(f"{PREFIX}-{node}", "nft", "delete", "table", "ip", TABLE))
