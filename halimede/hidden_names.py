"""Which files of a folder are samples, by their names: one rule for data sets, cameras, folder sources, ``publish``.

The module imports nothing, so that each reader of a folder can use it.
"""

from __future__ import annotations

#: names of files and folders, in lower case, that programs leave in data
LEFT_BEHIND = frozenset({"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin"})


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is no sample: it begins with a dot, or a program has left it in the data.

    ``name`` is the last part of a path. Examples are checkpoints of notebooks, and resource files of macOS.
    """
    return name.startswith(".") or name.lower() in LEFT_BEHIND
