"""``make test-cluster``: start a cluster or take the one of KUBECONFIG, run the operator's suite, write the report."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.images import Images
from tests.cluster.processes import ClusterError
from tests.cluster.requirements import HOW, missing
from tests.cluster.settings import NODES, ROOT, STATE

#: for ``conftest.py``: the suite may run
MARK = "HALIMEDE_TEST_CLUSTER"


def main() -> int:
    """Return the exit code: 2 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--binaries", type=Path, default=os.environ.get("KUBE_BINARIES") or None)
    parser.add_argument("--hold", action="store_true", help="start the cluster, run no suite, wait for Ctrl-C")
    parser.add_argument("--one-node", action="store_true", help="a single node, with both labels of the guide")
    parser.add_argument("--toleration", type=int, default=300, metavar="S", help="the cluster's eviction time")
    options, rest = parser.parse_known_args()
    if options.binaries is None:
        if os.environ.get("KUBECONFIG"):
            return suite([], dict(os.environ), rest)
        print(HOW, file=sys.stderr)
        return 2
    lacking = missing(options.binaries.resolve())
    if lacking:
        print("\n".join(["Missing for a cluster on this machine:", *(f"  - {each}" for each in lacking), "", HOW]))
        return 2
    # its end removes the cluster, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        return own_cluster(options, rest)
    except ClusterError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def own_cluster(options: argparse.Namespace, rest: list[str]) -> int:
    """Start a cluster here, and run the suite in it."""
    images = Images().build()
    if former := Images.former():
        images |= former.build()
    plans = NODES[:1] if options.one_node else NODES
    with Cluster(options.binaries.resolve(), images, plans=plans, toleration_s=options.toleration) as cluster:
        environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "HALIMEDE_CLUSTER_STATE": str(STATE),
            "HALIMEDE_EDGE0": plans[-1].name,
        }
        if options.hold:
            print(" ".join(cluster.command("env", f"KUBECONFIG={cluster.kubeconfig}", "kubectl", "get", "nodes")))
            with suppress(KeyboardInterrupt):
                signal.pause()
            return 0
        return suite(cluster.command(), environment, rest)


def suite(prefix: list[str], environment: dict[str, str], rest: list[str]) -> int:
    """Run the suite, and return pytest's exit code."""
    command = [*prefix, sys.executable, "-m", "pytest", "-n", "0", "tests/cluster", *rest]
    return subprocess.run(command, cwd=ROOT, env={**environment, MARK: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
