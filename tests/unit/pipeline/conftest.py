"""The thread of a model, for tests of one worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from halimede.pipeline.executor import ModelThread


@pytest.fixture
async def thread() -> AsyncIterator[ModelThread]:
    """A thread for calls of models, which ends with the test."""
    async with ModelThread() as thread:
        yield thread
