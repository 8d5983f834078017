"""What the cluster needs of this machine, and how to get it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.network import usable

BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
#: programs of KubeEdge, and a folder with the definitions of its source (``build/crds``): where all three are there, a
#: node of edgecore is tested as well
KUBEEDGE = CLOUDCORE, EDGECORE, CRDS = "cloudcore", "edgecore", "kubeedge-crds"
#: programs, and the Debian packages that have them
PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "dnsmasq": "dnsmasq-base",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "cc": "gcc",
}
#: of a node of edgecore: the CNI plug-in for host ports uses it
EDGE_PROGRAMS = {"iptables": "iptables"}
PLUGINS = Path("/usr/lib/cni")
HOW = """\
The suite needs a cluster. Either:

  KUBECONFIG=FILE make test-cluster
      runs it on a cluster that you have. It creates and removes the namespace `halimede`, the definitions of halimede,
      and objects in `default`; its nodes must have the images (docs/cluster.md).

  KUBE_BINARIES=FOLDER make test-cluster
      starts a cluster of two nodes on this machine, as root, in network namespaces of its own. The folder has these
      programs, released or built from source (docs/cluster.md); all of Kubernetes have one version (tried with 1.36):
      {binaries}
      With KubeEdge's {kubeedge} in the folder, a place on KubeEdge is tested as well.""".format(
    binaries=", ".join(BINARIES), kubeedge=", ".join(KUBEEDGE)
)


def has_kubeedge(binaries: Path) -> bool:
    """Whether the folder has KubeEdge."""
    return all((binaries / name).exists() for name in KUBEEDGE)


def missing(binaries: Path) -> list[str]:
    """Return what is missing here for a cluster of our own, one line for each thing; empty if nothing is."""
    return list(_missing(binaries))


def _missing(binaries: Path) -> Iterator[str]:
    if sys.platform != "linux":
        yield "this machine does not run Linux"
        return
    if os.geteuid():
        yield "root: namespaces and mounts are made"
    for name in BINARIES:
        if not os.access(binaries / name, os.X_OK):
            yield f"{binaries / name}: there is no such program"
    programs = PROGRAMS | (EDGE_PROGRAMS if has_kubeedge(binaries) else {})
    absent = {package for program, package in programs.items() if shutil.which(program) is None}
    if not (PLUGINS / "ptp").exists():
        absent.add("containernetworking-plugins")
    for package in sorted(absent):
        yield f"the Debian package {package}"
    if shutil.which("kubectl") is None:
        yield "kubectl 1.27 or newer on the PATH: a released one, or built from source (docs/cluster.md)"
    if not absent and not os.geteuid() and (reason := usable()):
        yield f"network namespaces: {reason}"
