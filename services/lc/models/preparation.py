"""Which files a node needs for its Models and Datasets, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halimede.messages import DatasetFacts, ModelFacts
from halimede.names import Key

Phase = Literal["Pending", "Running", "Failed", "Ready"]


@dataclass(frozen=True, slots=True)
class RequiredFile:
    """A Model's file, or a Dataset's, that should be on this node. The generation is that of its resource.

    ``spec``: a Model's spec as JSON without its URL, which says how its file is to be tried.
    """

    key: Key
    uid: str
    generation: int
    url: str
    sha256: str = ""
    format: str = ""
    spec: str = ""


@dataclass(frozen=True, slots=True)
class Preparation:
    """How far a required file has come; ``path`` once it is there, and what has been found out about it."""

    want: RequiredFile
    phase: Phase = "Pending"
    reason: str = "Preparing"
    message: str = ""
    path: Path | None = None
    facts: ModelFacts | DatasetFacts | None = None
