"""Removal by the lines of the guide: nothing of halimede is left in the cluster."""

from __future__ import annotations

import time

import pytest

from tests.cluster.installation import GUIDE, Installation, typed_lines
from tests.cluster.kubectl import Kubectl
from tests.cluster.report import Report

pytestmark = pytest.mark.timeout(600)


def test_removal_leaves_nothing(installation: Installation, kubectl: Kubectl, report: Report) -> None:
    installation.remove_load()
    began = time.monotonic()
    for line in typed_lines(GUIDE, "Removal"):
        # the last line is for a resource that stays, and there is none
        if not line.startswith("kubectl patch"):
            installation.type(line)
    report.figures["removal_s"] = round(time.monotonic() - began, 1)
    report.write()
    left = kubectl.run("get", "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings", "-o", "name")
    assert [name for name in left.split() if "halimede" in name or "sedna.io" in name or "neptune.io" in name] == []
    own = kubectl.run("get", "all,configmaps,secrets", "-n", "default", "-o", "name")
    assert [name for name in own.split() if "digits" in name or "halimede" in name] == []
    labels = {key for node in kubectl.items("nodes") for key in node["metadata"]["labels"]}
    assert [key for key in labels if key.startswith("halimede.io/")] == []
