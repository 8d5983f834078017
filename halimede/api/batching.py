"""How many samples a model answers in one call: the fields of workers that answer others' samples."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

BATCH, DELAY_MS = 32, 0.0
MOST_BATCH, MOST_DELAY_MS = 1024, 1000

BatchSize = Annotated[
    int, Meta(ge=1, le=MOST_BATCH, description="Samples that its model answers in one call, at most.")
]
QueueDelay = Annotated[
    float,
    Meta(
        ge=0,
        le=MOST_DELAY_MS,
        description="Milliseconds that a sample may wait for more to be answered with; 0: what is there goes at once.",
    ),
]
