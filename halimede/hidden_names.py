"""Which names count in a folder of samples: one rule for data sets, cameras, folder sources and ``publish``.

It imports nothing, and no package above it: each reader of a folder can use it.
"""

from __future__ import annotations

#: names of files and folders, in lower case, that programs leave in data
LEFT_BEHIND = frozenset({"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin"})


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name is no sample: checkpoints of notebooks, resource files of macOS."""
    return name.startswith(".") or name.lower() in LEFT_BEHIND
