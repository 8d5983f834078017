"""What an API server makes of an object, by the double of one: for tests that no write is made twice."""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.double.builtin import decode
from tests.kubernetes.double.defaults import begin, fill
from tests.kubernetes.double.kinds import BUILT_IN

KINDS = {kind.kind: kind for kind in BUILT_IN}


def normalise(body: dict[str, Any]) -> dict[str, Any]:
    """Return an object as the server gives it back: what it does not know or need dropped, and defaults filled in."""
    kind = KINDS[body["kind"]]
    decoded, _ = decode(kind, copy.deepcopy(body))
    fill(kind, decoded)
    begin(kind, decoded)
    born = "2026-01-01T00:00:00Z"
    decoded["metadata"] |= {"uid": "u-1", "resourceVersion": "7", "generation": 1, "creationTimestamp": born}
    return decoded
