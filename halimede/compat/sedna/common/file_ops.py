"""Sedna's helpers for files and folders. They limit what a script can delete, and never open a pickle.

They do not download: models and data sets come as Models and Datasets, through the fetcher, which checks their origin
and content. All of them raise OSError for what the system refuses.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from halimede.compat.sedna.unsupported import NotThereError
from halimede.errors import InvalidFieldError

__all__ = ("FileOps",)

#: beginning of the URL of a local file
LOCAL = "file://"
#: depth of a folder, the root included, up to which it is not emptied: /tmp itself does not belong to a script
LEAST_DEPTH = 2
#: alternatives, in errors
PICKLE = "halimede reads and writes no pickles, for opening one runs what is in it: use numpy.save or JSON"
FETCH = "name it in the service as a Model or a Dataset, which are downloaded and checked before the script runs"


class FileOps:
    """Files and folders of a script. All methods are class methods."""

    @classmethod
    def join_path(cls, *args: str) -> str:
        """Return a path of parts; a later part with a leading slash does not start a new path."""
        first, *parts = map(str, args)
        return os.path.join(first, *(part.lstrip(os.path.sep) for part in parts))  # noqa: PTH118  # may be an address

    @classmethod
    def make_dir(cls, *args: str) -> None:
        """Make the folder of a path and its parents."""
        Path(cls.join_path(*args)).mkdir(parents=True, exist_ok=True)

    @classmethod
    def make_base_dir(cls, *args: str) -> None:
        """Make the folder that the file of a path is in."""
        Path(cls.join_path(*args)).parent.mkdir(parents=True, exist_ok=True)

    @classmethod
    def clean_folder(cls, target: str | Iterable[str | None], clean: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Make folders, and empty existing ones if ``clean``; return ``target``.

        With ``clean``, a folder replaces a file; otherwise a file stays. Links in a folder are removed, not followed.
        Empty names and None are ignored. Raises InvalidFieldError for a folder that a script must not empty: its
        working directory, its home, their parents, or one directly below the root.
        """
        for name in [target] if isinstance(target, str) else target:
            if not name:
                continue
            path = Path(name)
            if clean and path.is_dir():
                for entry in _folder_to_empty(path).iterdir():
                    _remove(entry)
            elif clean and path.is_file():
                path.unlink()
            (path.parent if path.is_file() else path).mkdir(parents=True, exist_ok=True)
        return target

    @classmethod
    def exists(cls, folder: str | Path) -> bool:
        """Whether a file or folder exists, links followed."""
        return Path(folder).exists()

    @classmethod
    def is_local(cls, src: str) -> bool:
        """Whether a path or URL is of a file on this machine."""
        return src.startswith(LOCAL) or cls.exists(src)

    @classmethod
    def remove_path_prefix(cls, org_str: str, prefix: str) -> str:
        """Return the path ``org_str`` without ``prefix``, unchanged if it does not begin with the prefix."""
        return org_str.removeprefix(prefix.removesuffix(os.path.sep))

    @classmethod
    def get_file_hash(cls, filepath: str) -> str:
        """Return the MD5 of a file, to distinguish versions; empty without the file."""
        path = Path(filepath or "")
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

    @classmethod
    def copy_folder(cls, src: str, dst: str | None) -> None:
        """Copy the content of a folder into ``dst``; links stay links.

        A missing ``src`` or ``dst``, and a copy into itself, are ignored.
        """
        if not dst or not Path(src).is_dir() or (Path(dst).exists() and Path(src).samefile(dst)):
            return
        shutil.copytree(src, dst, symlinks=True, dirs_exist_ok=True)

    @classmethod
    def copy_file(cls, src: str, dst: str | None) -> None:
        """Copy a file to a path or into a folder, or a folder into another. A missing ``src`` or ``dst`` is ignored."""
        if not dst:
            return
        source, aim = Path(src.removeprefix(LOCAL)), Path(dst)
        if source.is_dir():
            cls.copy_folder(str(source), dst)
        elif source.is_file() and not (aim.exists() and source.samefile(aim)):
            aim.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, aim)

    @classmethod
    def download(cls, src: str, dst: str | None, unzip: bool = False) -> str:  # noqa: FBT001, FBT002
        """Copy a file of this machine; return ``dst``.

        Raises NotThereError for other sources, without ``dst``, and with ``unzip``.
        """
        if not cls.is_local(src) or dst is None or unzip:
            raise NotThereError(f"FileOps.download: {FETCH}")
        cls.copy_file(src, dst)
        return dst

    @classmethod
    def upload(cls, src: str, dst: str | None, tar: bool = False) -> str:  # noqa: FBT001, FBT002
        """Copy a file of this machine to another path of it; return ``dst``.

        Raises NotThereError for other sources and destinations, and with ``tar``.
        """
        if not cls.is_local(src) or not dst or "://" in dst or tar:
            raise NotThereError("FileOps.upload: copy to a folder of this machine, or publish what others shall have")
        cls.copy_file(src, dst)
        return dst

    @classmethod
    def dump_pickle(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise NotThereError, which names the alternative."""
        raise NotThereError(f"FileOps.dump_pickle: {PICKLE}")

    @classmethod
    def load_pickle(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise NotThereError, which names the alternative."""
        raise NotThereError(f"FileOps.load_pickle: {PICKLE}")


def _folder_to_empty(path: Path) -> Path:
    """Return the folder itself if it may be emptied. Raises InvalidFieldError."""
    real = path.resolve()
    home, here = Path.home().resolve(), Path.cwd().resolve()
    if len(real.parts) <= LEAST_DEPTH or real in {home, *home.parents, here, *here.parents}:
        raise InvalidFieldError("clean_folder", str(path), "name a folder of the script's own, deeper in the tree")
    return real


def _remove(entry: Path) -> None:
    """Remove a file, a link, or a folder with its content."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
