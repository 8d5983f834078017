"""What a test registers under Sedna's names is gone after it."""

from __future__ import annotations

import pytest

from halimede.compat.sedna.common.class_factory import ClassFactory


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = {kind: dict(registered) for kind, registered in ClassFactory.__registry__.items()}
    monkeypatch.setattr(ClassFactory, "__registry__", copy)
