"""Which names count in a folder of samples: one rule for data sets, cameras, folder sources and ``publish``.

It imports nothing, and no package above it: each reader of a folder can use it.
"""

from __future__ import annotations


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name is no sample: checkpoints of notebooks, resource files of macOS."""
    return name.startswith(".")
