"""The main job on Kubernetes as its users see it, nothing scripted: `kubectl`, cameras, results; processes for all."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from halimede import topics
from tests.e2e.running import digits
from tests.kubernetes.apiserver import Api, kind_of_server
from tests.kubernetes.kubelet import until
from tests.kubernetes.sandbox import missing
from tests.kubernetes.whole import Whole, whole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(kind_of_server() == "cluster", reason="its own kubelets run its pods"),
]
SERVICE = "digits"
KIND = "jointinferenceservices.sedna.io/v1alpha1"


async def test_digits_from_apply_to_delete(api: Api, tmp_path: Path) -> None:
    pictures = digits()
    async with whole(api, tmp_path) as made:
        await made.gm("gm-0")
        await made.follow(SERVICE)
        await made.apply(*made.manifests())
        await made.running(SERVICE)
        await made.send(pictures[:100])
        await until("answers", lambda: not made.unanswered)
